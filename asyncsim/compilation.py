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
