"""This plugin beside another user's plugin in one process."""

from support.tiny import BIN, PLUGIN, run_command, succeeded

OTHER = """
from fairseq.models import register_model_architecture
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

@register_task("another_task", dataclass=LanguageModelingConfig)
class AnotherTask(LanguageModelingTask):
    pass

@register_model_architecture("transformer_lm", "another_architecture")
def another(args):
    pass
"""
IMPORT = """
import sys
from argparse import Namespace
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from fairseq.utils import import_user_module

for folder in sys.argv[1:]:
    try:
        import_user_module(Namespace(user_dir=folder))
    except ImportError as error:
        print(error)
print({"another_task", "memory_lm"} <= set(TASK_REGISTRY))
print({"another_architecture", "linear_lm_rope"} <= set(ARCH_MODEL_REGISTRY))
print(ARCH_MODEL_REGISTRY["linear_lm_rope"].__module__)
"""


def test_plugins_are_combined_and_a_second_copy_is_refused(tmp_path):
    copy, other = tmp_path / "elsewhere" / "fairseq_lrpe", tmp_path / "another_plugin"
    for folder, content in ((copy, ""), (other, OTHER)):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(content)
    done = succeeded(run_command(BIN / "python", "-c", IMPORT, other, PLUGIN, copy))
    message, *found = done.stdout.splitlines()
    assert f"--user-dir={copy}" in message and "(fairseq_lrpe) is not globally unique" in message
    assert found == ["True", "True", "fairseq_lrpe.models.register"]
