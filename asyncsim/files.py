"""Writing that leaves either the whole file or folder, or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncsim.errors import InputError

MARK = "asyncsim.json"  # a folder with this file is ours, and may be replaced


def write_atomically(path: Path, content: bytes) -> None:
    """Write under a temporary name beside the file, then rename."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror}", str(path)) from None


def check_folder(path: Path) -> None:
    """Refuse a folder that could not be written later, before any work is done."""
    if path.exists() and not path.is_dir():
        raise InputError("is a file, not a folder", str(path))
    if path.is_dir() and any(path.iterdir()) and not (path / MARK).is_file():
        raise InputError("is not empty and holds no asyncsim results; choose another folder", str(path))
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot be made: {parent} is not a writable folder", str(path))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill; when all went well it takes the given name, replacing former results there."""
    check_folder(path)
    missing = [p for p in path.parents if not p.exists()]  # from the inside out
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", str(path)) from None
    try:
        temporary.chmod(0o755)
        yield temporary
        if path.is_dir():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.replace(path, old / "old")
            os.replace(temporary, path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", str(path)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for folder in missing:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
