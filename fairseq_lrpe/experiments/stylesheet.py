"""The look of page.py's page: light and dark, and as wide as a phone or a screen."""

STYLE = """
:root {
  color-scheme: light dark;
  --back: #fff; --text: #1b1f24; --soft: #5b6470; --line: #d9dee4; --shade: #f4f6f8; --paper: #fbf6e9;
  --link: #0b5cad; --finished: #1a7f37; --running: #0b5cad; --stopped: #9a6700; --damaged: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14171b; --text: #e4e8ec; --soft: #a2abb5; --line: #343b43; --shade: #1d2228; --paper: #2a2619;
    --link: #7fb6f0; --finished: #63c37c; --running: #7fb6f0; --stopped: #dfb04a; --damaged: #f2877f;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
header, nav, main { max-width: 76rem; margin: 0 auto; padding: 0 1rem; }
main { padding-bottom: 3rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 1.5rem 0 .3rem; }
h2 { font-size: 1.35rem; margin: 2.8rem 0 .6rem; padding-top: .6rem; border-top: 2px solid var(--line); }
h3 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
h1, h2, h3, p, li, summary, dd { overflow-wrap: anywhere; }
p { margin: .35rem 0; max-width: 60rem; }
a { color: var(--link); }
code { font: .92em ui-monospace, monospace; }
nav ul { padding-left: 1.1rem; margin: .3rem 0; }
nav ul ul { columns: 22rem; }
.title { font-weight: 600; margin-top: .9rem; }
.soft { color: var(--soft); font-size: .92rem; }
.counts { list-style: none; display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; margin: 1rem 0; }
.counts li { border: 1px solid var(--line); border-radius: .5rem; padding: .4rem .9rem; min-width: 6.2rem; }
.counts b { display: block; font-size: 1.5rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.finished { color: var(--finished); }
.running { color: var(--running); }
.stopped { color: var(--stopped); }
.damaged, .failed { color: var(--damaged); }
.box { overflow-x: auto; width: fit-content; max-width: 100%; margin: .5rem 0; }
.box { border: 1px solid var(--line); }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .6rem; text-align: right; white-space: nowrap; vertical-align: top; }
th { background: var(--shade); font-weight: 600; vertical-align: bottom; }
th.text, td.text { text-align: left; }
.wrap, .long { min-width: 9rem; overflow-wrap: anywhere; }
.long { min-width: 20rem; }
th.wrap, td.wrap, th.long, td.long { text-align: left; white-space: normal; }
th.paper, td.paper { background: var(--paper); }
td { border-top: 1px solid var(--line); }
.rows th:nth-child(2), .rows td:nth-child(2) { position: sticky; left: 0; }
.rows td:nth-child(2) { background: var(--back); }
.group td { border-top: 2px solid var(--soft); }
/* Methods have the same colours in all pictures, black among them: they are white in the dark too. */
.plot { background: #fff; border: 1px solid var(--line); padding: .3rem; margin: .7rem 0 .2rem; }
details { border: 1px solid var(--line); margin: .35rem 0; padding: 0 .7rem; }
details[open] { padding-bottom: .5rem; }
summary { cursor: pointer; padding: .35rem 0; }
progress { display: block; width: 8rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .9rem; margin: .4rem 0; }
dt { color: var(--soft); }
dd { margin: 0; }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .3rem; }
  .counts li { flex: 1 1 6rem; }
}
"""
