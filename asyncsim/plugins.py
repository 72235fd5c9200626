"""A user's own methods, models and protocols, from modules by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

from asyncsim.errors import InputError


def import_plugins(modules: Iterable[str]) -> None:
    """Import modules that register something. Raises InputError, which names the module, if one cannot be imported."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the scenario's user, as ``python -m`` finds it
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            what = f"cannot be imported: {type(error).__name__}: {error}"
            raise InputError(what, f"--plugin {module}") from None
