"""Bytes that processes move, also without a call that reads or writes."""

import mmap
import os
from pathlib import Path

from tflaunch_worker.features.hang.traffic import Traffic

PAGES = 64


def test_pages_of_a_mapped_file_that_come_from_the_disk_count(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(PAGES * mmap.PAGESIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            data.madvise(mmap.MADV_RANDOM)
            before = Traffic().of(os.getpid())
            own = Traffic().of(os.getpid()) - before
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            before = Traffic().of(os.getpid())
            assert not any(data[number * mmap.PAGESIZE] for number in range(PAGES))
            assert Traffic().of(os.getpid()) - before >= own + PAGES * mmap.PAGESIZE // 2
