"""Writing that leaves either the whole file or folder, or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def cache_folder() -> Path:
    """Where downloads and compiled programs are kept: $ASYNCSIM_CACHE, or asyncsim in the user's cache
    ($XDG_CACHE_HOME, ~/.cache)."""
    own = os.environ.get("ASYNCSIM_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncsim"


def check_folder(path: Path, kind: str) -> None:
    """Refuse a folder that cannot take results of this kind, before any work is done."""
    try:
        if path.exists() and not path.is_dir():
            raise InputError("is a file, not a folder", str(path))
        if path.is_dir() and any(path.iterdir()):
            held, others = _held(path)
            if held is None:
                raise InputError("is not empty and holds no asyncsim results; choose another folder", str(path))
            if held != kind:
                raise InputError(f"holds a {held}, which a {kind} would replace; choose another folder", str(path))
            if others:
                what = f"holds {others[0]} besides asyncsim's results, which would be replaced; choose another folder"
                raise InputError(what, str(path))
        parent = path.absolute().parent
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"cannot be made: {parent} is not a writable folder", str(path))
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", str(path)) from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"is no path: {error}", str(path)) from None


def mark(folder: Path, kind: str, **meta: Any) -> None:
    """Write the mark by which a folder is known as ours: its kind, what else is to be said, and its files by name."""
    files = sorted({str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} | {MARK})
    (folder / MARK).write_text(to_json({"kind": kind, **meta, "files": files}), encoding="utf-8")


def read_mark(folder: Path, holds: str) -> Any:
    """What the mark of a folder says; ``holds`` says what should be in it. Raises InputError without one."""
    try:
        return json.loads((folder / MARK).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"holds no {holds}: there is no {MARK}", str(folder)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read: {error}", str(folder / MARK)) from None


def to_json(value: Any) -> str:
    """JSON with one key a line; what is not a number is written as NaN, as Python reads it."""
    return json.dumps(value, indent=2) + "\n"


def _held(path: Path) -> tuple[str | None, list[str]]:
    """What results a folder holds, or None; and which files in it are not of them."""
    try:
        found = json.loads((path / MARK).read_text(encoding="utf-8"))
        kind, ours = str(found["kind"]), set(found.get("files", ()))
    except (OSError, ValueError, KeyError, TypeError):
        return None, []
    return kind, sorted({str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()} - ours)


@contextmanager
def new_folder(path: Path, kind: str) -> Iterator[Path]:
    """A temporary folder to fill; when all went well it takes the given name, for former results of its kind."""
    check_folder(path, kind)
    path = Path(os.path.realpath(path))  # where a link leads, not in place of the link
    missing = [p for p in path.parents if not p.exists()]  # from the inside out
    temporary = old = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        temporary.chmod(0o755)
        yield temporary
        check_folder(path, kind)  # again: the work may have taken hours
        if path.is_dir():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.replace(path, old / "old")
            try:
                os.replace(temporary, path)
            except OSError:
                os.replace(old / "old", path)
                raise
        else:
            os.replace(temporary, path)
    except InputError as error:
        hidden = temporary is not None and error.path.startswith(str(temporary))
        raise (InputError(error.what, str(path)) if hidden else error) from None
    except OSError as error:
        verb = "made" if temporary is None else "written"
        raise InputError(f"cannot be {verb}: {error.strerror or error}", str(path)) from None
    finally:
        for folder in (temporary, old):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        for folder in missing:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
