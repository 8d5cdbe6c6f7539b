"""Reports of the measurements of runs, finished or not: tables, plots and HTML pages.

Modules that take seconds to import, such as torch, are imported in the functions that need them.
"""
