"""How does the CIFAR-10 data set get to where tasks look for it? Downloaded, proved, unpacked, each once.

Run again, it goes on where it was: an archive that is there, however it came,
is proved and unpacked without a network, and a folder that is there is read.
Nothing of an archive is believed: only the files with the expected names are
taken out, under these names, and read as data before the folder gets its own.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from paceline.app.download import OnBytes, WrongFileError, cannot_write, download, sha256_of
from paceline.disk import sync_folder
from paceline.tasks.cifar_files import (
    ARCHIVE,
    FETCH,
    FOLDER,
    NAMES,
    TEST,
    TRAINING,
    check_batches,
    members,
    read_images,
)

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    folder: Path
    training_images: int
    test_images: int
    was_downloaded: bool
    was_there: bool  # nothing had to be done


def fetch_cifar10(to: Path, *, url: str = URL, sha256: str = SHA256, on_bytes: OnBytes) -> Fetched:
    folder, archive = to / FOLDER, to / ARCHIVE
    if folder.is_dir():
        return _looked_at(folder, was_downloaded=False, was_there=True)
    is_new = not archive.is_file()
    if is_new:
        by_hand = (
            f"go online and type `{FETCH} --to {to}` again, which goes on from there; or bring {ARCHIVE} "
            f"from elsewhere, put it at {archive}, and type the same"
        )
        download(url, archive, sha256=sha256, by_hand=by_hand, on_bytes=on_bytes)
    elif (found := sha256_of(archive)) != sha256:
        raise WrongFileError(
            f"{archive} has the SHA-256 {found}, and not {sha256}",
            f"rm {archive}, and fetch it; or, if you trust it, add --sha256 {found}",
        )
    _unpack(archive, folder)
    return _looked_at(folder, was_downloaded=is_new, was_there=False)


def _unpack(archive: Path, folder: Path) -> None:
    contents = members(archive, (*TRAINING, TEST), also=(NAMES,))
    check_batches(archive, contents)
    fresh = folder.with_name(f".{FOLDER}.{os.getpid()}")
    try:
        fresh.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (fresh / name).write_bytes(content)
        fresh.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _looked_at(folder: Path, *, was_downloaded: bool, was_there: bool) -> Fetched:
    read = read_images(folder)
    return Fetched(
        folder=folder,
        training_images=len(read.training[1]),
        test_images=len(read.test[1]),
        was_downloaded=was_downloaded,
        was_there=was_there,
    )
