"""Compiled programs, kept for all processes and for later."""

from __future__ import annotations

import os
import warnings

from asyncsim.files import cache_folder


def program_cache(threads: int) -> str | None:
    """The folder where programs compiled for so many threads are kept: others may part their work in another way.

    None where JAX was told of a folder, or where none can be made.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return None
    try:
        folder = cache_folder() / "compiled" / f"{threads}-threads"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # nowhere to write, or no home
        return None
    return str(folder) if os.access(folder, os.W_OK | os.X_OK) else None


def keep_programs(folder: str | None) -> None:
    """Have JAX keep what it compiles there, and look there first."""
    import jax

    # a process that was killed may have left half a program behind: it is compiled again
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


_in_float64: bool | None = None  # whether what was last compiled of users' functions was


def forget_other_precision() -> None:
    """Forget what was compiled, if users' functions were last compiled in another precision than JAX is set to now.

    An array of NumPy that a function has from outside keeps the type of its first compilation (JAX 0.10), and then does
    not compile in another.
    """
    import jax

    global _in_float64
    now = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    if _in_float64 not in (None, now):
        jax.clear_caches()
    _in_float64 = now
