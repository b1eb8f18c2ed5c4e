"""Tells rl_zoo3 and imitation about the algorithms of sb3_dualqdm, at the moment when they are imported.

``sb3_dualqdm.pth`` calls :func:`install` whenever Python starts. It adds one finder to ``sys.meta_path``, which
answers a dictionary look-up for every import and otherwise does nothing. ``SB3_DUALQDM_NO_HOOK=1`` turns it off.

This module stays outside the package and imports only ``sys`` and ``os`` (already loaded by ``site``): a start-up file
must cost nothing, and must not import the package before a coverage tool or a user does.
"""

import os
import sys

# Module -> module of this package and its function that receives it once it is imported
TARGETS = {
    f"rl_zoo3.{name}": ("sb3_dualqdm.zoo", f"on_{name}")
    for name in ("utils", "hyperparams_opt", "callbacks", "import_envs", "exp_manager")
}
for _name in ("policies.serialize", "scripts.ingredients.rl", "scripts.config.train_adversarial"):
    TARGETS[f"imitation.{_name}"] = ("sb3_dualqdm.imitation_scripts", f"on_{_name.rpartition('.')[2]}")


def notify(module):
    """Call the function for ``module``; whatever goes wrong becomes a warning, so that the others always keep working."""
    try:
        from importlib import import_module

        ours, function = TARGETS[module.__name__]
        getattr(import_module(ours), function)(module)
    except Exception as error:
        import warnings

        warnings.warn(
            f"sb3_dualqdm could not set up {module.__name__} ({type(error).__name__}: {error}), so dual_qdm and its "
            "relatives may be missing there; reinstall sb3-dualqdm, or set SB3_DUALQDM_NO_HOOK=1 to silence this.",
            RuntimeWarning,
            stacklevel=2,
        )


class ZooFinder:
    """Lets the finders behind it find a target module, and has :func:`notify` called after that module was executed."""

    def find_spec(self, name, path=None, target=None):
        if name not in TARGETS:
            return None
        behind = list(sys.meta_path)
        behind = behind[behind.index(self) + 1 :] if self in behind else behind
        for finder in behind:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                self._call_after_execution(spec)
                return spec
        return None

    @staticmethod
    def _call_after_execution(spec):
        loader = spec.loader
        if not hasattr(loader, "exec_module") or getattr(spec, "sb3_dualqdm_hooked", False):
            return
        exec_module = loader.exec_module

        def exec_module_and_notify(module):
            exec_module(module)
            # A zip importer is one loader for many modules: this is for the module of this spec only.
            if module.__spec__ is spec:
                notify(module)

        try:
            # On the instance: the loader's class, and with it inspect and importlib.resources, stay as they are.
            loader.exec_module = exec_module_and_notify
            spec.sb3_dualqdm_hooked = True
        except AttributeError:
            pass  # a loader with slots


def install(always=False):
    """Add the finder unless it is there or (but for ``always``) switched off; serve targets that were imported earlier."""
    if os.environ.get("SB3_DUALQDM_NO_HOOK") and not always:
        return
    if any(type(finder).__module__ == __name__ for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, ZooFinder())
    for name in TARGETS:
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            notify(module)
