"""Pictures that are meant to hurt: decoded or refused in a sentence, in bounded seconds and memory."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable

from PIL import Image

from tests.drills.lab import Lab, Verdict, drills, problem
from tests.families.test_images import chunk, encoded, progressive

CPU_SECONDS = 5.0


def saved(kind: str, size: tuple[int, int] = (64, 48), mode: str = "RGB", **options: object) -> bytes:
    return encoded(Image.radial_gradient("L").resize(size).convert(mode), kind, **options)


def frames(kind: str, count: int = 300) -> bytes:
    return saved(kind, save_all=True, append_images=[Image.new("RGB", (64, 48), (n % 256, 3, 9)) for n in range(count)])


def behind(data: bytes, at: int, more: bytes) -> bytes:
    return data[:at] + more + data[at:]


def png(more: bytes = b"", size: tuple[int, int] = (64, 48), data: bytes | None = None) -> bytes:
    """A grey PNG whose header may lie, with chunks in front of its pixels."""
    header = struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((65 * 48) if data is None else 0)) if data is None else data
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def tiles(count: int, width: int, height: int) -> bytes:
    """A TIFF in tiles of one pixel, all of them the same byte."""
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1)]
    tags += [(322, 4, 1, 1), (323, 4, 1, 1)]
    behind_tags = 24 + 2 + 12 * (len(tags) + 2) + 4
    tags += [(324, 4, count, behind_tags), (325, 4, count, behind_tags + 4 * count)]
    written = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    head = b"II*\0" + struct.pack("<I", 24) + bytes(16) + struct.pack("<H", len(tags)) + written + bytes(4)
    return head + struct.pack("<I", 8) * count + struct.pack("<I", 1) * count


ZEROS = zlib.compress(bytes(100_000_000), 9)
WORK: dict[str, Callable[[], bytes]] = {
    "JPEG, 30,000 scans": lambda: progressive(30_000, 2000),
    "JPEG, 64 million pixels and 30 scans": lambda: progressive(30, 8000),
    "JPEG, 5 million comments": lambda: behind(saved("JPEG"), 2, b"\xff\xfe\0\2" * 5_000_000),
    "JPEG, 20 MB of fill bytes": lambda: behind(saved("JPEG"), 2, b"\xff" * 20_000_000),
    "JPEG, fill bytes in the scan": lambda: behind(saved("JPEG"), -2, b"\xff" * 20_000_000 + b"\0"),
    "JPEG, 20 MB of nothing between markers": lambda: behind(saved("JPEG"), 2, bytes(20_000_000)),
    "JPEG that says 65,535 x 65,535": lambda: saved("JPEG").replace(struct.pack(">HH", 48, 64), b"\xff" * 4, 1),
    "JPEG in arithmetic code": lambda: saved("JPEG").replace(b"\xff\xc0", b"\xff\xc9", 1),
    "JPEG without its tables": lambda: saved("JPEG").replace(b"\xff\xc4", b"\xff\xfe"),
    "JPEG, pictures behind its end": lambda: saved("JPEG") * 2000,
    "PNG, 100,000 chunks": lambda: png(chunk(b"abCd", b"") * 100_000),
    "PNG, 100,000 texts": lambda: png(chunk(b"tEXt", b"k\0v") * 100_000),
    "PNG, 100,000 empty pieces of pixels": lambda: png(chunk(b"IDAT", b"") * 100_000),
    "PNG, profile of 100 MB": lambda: png(chunk(b"iCCP", b"k\0\0" + ZEROS)),
    "PNG, international text of 100 MB": lambda: png(chunk(b"iTXt", b"k\0\1\0\0\0" + ZEROS)),
    "PNG, 100 MB behind the pixels": lambda: png(data=ZEROS),
    "PNG without height": lambda: png(size=(64, 0)),
    "PNG of 60,000 frames": lambda: png(chunk(b"acTL", struct.pack(">II", 60_000, 0))),
    "TIFF, 250,000 tiles": lambda: tiles(250_000, 500, 500),
    "TIFF, a million tiles": lambda: tiles(1_000_000, 1000, 1000),
    "TIFF, 64 million pixels in LZW": lambda: saved("TIFF", (8000, 8000), "L", compression="tiff_lzw"),
    "JPEG 2000, tiles of 8 pixels": lambda: saved("JPEG2000", (1000, 1000), "L", tile_size=(8, 8)),
    "JPEG 2000, 64 million pixels": lambda: saved("JPEG2000", (8000, 8000), "L"),
    "WebP, 64 million pixels": lambda: saved("WEBP", (8000, 8000), "L", lossless=True, method=0),
    "GIF, 64 million pixels": lambda: saved("GIF", (8000, 8000), "L"),
    "BMP that says 2^30 pixels": lambda: saved("BMP").replace(
        struct.pack("<ii", 64, 48), struct.pack("<ii", 2**15, 2**15)
    ),
    **{f"{kind}, 300 frames": lambda kind=kind: frames(kind) for kind in ("PNG", "GIF", "WEBP", "AVIF", "TIFF", "MPO")},
}


def decoded(make: Callable[[], bytes]) -> Callable[[Lab], Verdict]:
    """Load it as training and as relations of places do; any sentence is an answer, and so is a picture."""

    def body(lab: Lab) -> Verdict:
        file = lab.folder() / "picture"
        lab.wait(lab.fork(lambda: file.write_bytes(make()) * 0))

        def load() -> int:
            from model_adapters.images import ImageError, load_image, upright_size

            took = []
            for call in (load_image, upright_size):
                data, began = file.read_bytes(), time.process_time()
                try:
                    call(data)
                except ImageError as error:
                    print(f"mmcorl: {error}")
                took.append(time.process_time() - began)
            print(f"{max(took):.2f}")
            return 0

        lab.ended.clear()  # what it took to make
        ended = lab.wait(lab.fork(load))
        if wrong := problem(ended, peak_mb=1750):  # Pillow's WebP decoder takes 900, torch and transformers 620.
            return wrong
        seconds = float(ended.output.split()[-1])
        return Verdict("survived" if seconds < CPU_SECONDS else "hang", f"{seconds} s: {ended.sentence}")

    return body


DRILLS = drills("pictures", ((name, decoded(make)) for name, make in WORK.items()))
