"""`load_image`: each kind of picture a data set may hold, with the pixels worked out by hand."""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from model_adapters.base import AdapterError
from model_adapters.images import MAX_RATIO, MIN_SIDE, ImageError, load_image, upright_size

SIDE = 32  # above MIN_SIDE and below max_side, so nothing is resized and pixels can be compared exactly


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def plain(mode: str, colour: object) -> Image.Image:
    return Image.new(mode, (SIDE, SIDE), colour)


def pixel(image: Image.Image, at: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
    value = image.getpixel(at)
    assert isinstance(value, tuple)
    return value


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *, before: bytes = b"", data: bytes | None = None, after: bytes = b"") -> bytes:
    """A greyscale PNG written by hand, so that its header may lie and carry any chunk."""
    if data is None:
        data = b"".join(b"\0" + bytes(width) for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + before + chunk(b"IDAT", zlib.compress(data, 9)) + after
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def photo(width: int = 40, height: int = 30) -> Image.Image:
    """A picture without symmetry: red grows to the right, green downwards."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 6, y * 8, (x + y) * 3], axis=-1).astype(np.uint8))


def progressive(scans: int, size: int = 200) -> bytes:
    """A picture whose last scan stands there again and again."""
    data = encoded(Image.new("RGB", (size, size), "red"), "JPEG", progressive=True)
    last, own = data.rindex(b"\xff\xda"), data.count(b"\xff\xda")
    return data[:last] + data[last:-2] * (scans - own + 1) + data[-2:]


def test_a_jpeg_that_is_decoded_too_often_or_whose_header_never_ends_is_refused() -> None:
    red = pixel(load_image(progressive(10)))
    assert pixel(load_image(progressive(512))) == red
    with pytest.raises(ImageError, match="513 scans"):
        load_image(progressive(513))
    with pytest.raises(ImageError, match="37 scans"):
        upright_size(progressive(37, 8000))
    plain = encoded(Image.new("RGB", (50, 50), "red"), "JPEG")
    # What looks like markers within a segment or in front of nothing is none.
    comment = b"\xff\xfe" + (2 + 6000).to_bytes(2) + b"\xff\xda\0\2" * 1500
    assert pixel(load_image(plain[:2] + comment + plain[2:])) == red
    for fill in (b"\xff\xfe\0\2" * 70_000, b"\xff" * 70_000, b"\xff" * 70_000 + b"\0"):
        with pytest.raises(ImageError, match="markers"):
            load_image(plain[:2] + fill + plain[2:])


# -- colours ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (plain("RGB", (10, 20, 30)), (10, 20, 30)),
        (plain("L", 77), (77, 77, 77)),
        (plain("1", 1), (255, 255, 255)),
        # Opaque alpha keeps the colour, no alpha shows the white behind it.
        (plain("RGBA", (10, 20, 30, 255)), (10, 20, 30)),
        (plain("RGBA", (10, 20, 30, 0)), (255, 255, 255)),
        # Alpha 51/255 = 0.2: 0.2 * 0 + 0.8 * 255 = 204; 0.2 * 100 + 204 = 224; 0.2 * 255 + 204 = 255.
        (plain("RGBA", (0, 100, 255, 51)), (204, 224, 255)),
        (plain("LA", (0, 51)), (204, 204, 204)),
        # Premultiplied: 20 at alpha 51 is a colour of 20 / 0.2 = 100, on white 224.
        (plain("RGBa", (20, 20, 20, 51)), (224, 224, 224)),
        (plain("La", (20, 51)), (224, 224, 224)),
        # 255 - cyan, 255 - magenta, 255 - yellow, no black.
        (plain("CMYK", (255, 0, 55, 0)), (0, 255, 200)),
        # 16 bits: 65535 / 257 = 255, 25700 / 257 = 100, 128 / 257 = 0.498 down, 129 / 257 = 0.502 up.
        (Image.fromarray(np.full((SIDE, SIDE), 65535, np.uint16)), (255, 255, 255)),
        (Image.fromarray(np.full((SIDE, SIDE), 128, np.uint16)), (0, 0, 0)),
        (Image.fromarray(np.full((SIDE, SIDE), 129, np.uint16)), (1, 1, 1)),
        (plain("I", 25700), (100, 100, 100)),
        # Floats: 0.4 * 255 = 102; 99.6 rounds to 100.
        (plain("F", 0.4), (102, 102, 102)),
        (plain("F", 99.6), (100, 100, 100)),
    ],
    ids=lambda value: getattr(value, "mode", None),
)
def test_every_mode_becomes_rgb(image: Image.Image, expected: tuple[int, int, int]) -> None:
    result = load_image(image)
    assert result.mode == "RGB"
    assert result.size == (SIDE, SIDE)
    assert pixel(result) == expected


def test_transparent_colours_become_white_and_unknown_ranges_are_stretched() -> None:
    palette = Image.new("P", (SIDE, SIDE), 1)
    palette.putpalette([0, 0, 0, 200, 100, 50])
    assert pixel(load_image(palette)) == (200, 100, 50)
    # Index 1 see-through, by index or by a table of alphas: 0.2 * 200 + 204 = 244, 224, 214.
    assert pixel(load_image(encoded(palette, transparency=1))) == (255, 255, 255)
    assert pixel(load_image(encoded(palette, transparency=bytes([255, 51])))) == (244, 224, 214)
    assert pixel(load_image(encoded(palette, "GIF", transparency=1))) == (255, 255, 255)
    assert pixel(load_image(encoded(plain("RGB", (1, 2, 3)), transparency=(1, 2, 3)))) == (255, 255, 255)
    assert pixel(load_image(encoded(plain("RGB", (1, 2, 4)), transparency=(1, 2, 3)))) == (1, 2, 4)
    sixteen = Image.fromarray(np.full((SIDE, SIDE), 25700, np.uint16))
    assert pixel(load_image(encoded(sixteen, transparency=25700))) == (255, 255, 255)
    # -1000 becomes 0, 1000 becomes 255, and 0 lies half way: 127.5, rounded up.
    values = np.zeros((SIDE, SIDE), np.float32)
    values[0, :2] = (-1000, 1000)
    for image in (Image.fromarray(values), Image.fromarray(values.astype(np.int32))):
        assert [pixel(load_image(image), (x, 0))[0] for x in range(3)] == [0, 255, 128]
    assert "not finite" in refused(plain("F", float("nan")))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_survive_the_file(kind: str) -> None:
    ramp = np.linspace(0, 65535, SIDE * SIDE).astype(np.uint16).reshape(SIDE, SIDE)
    result = np.asarray(load_image(encoded(Image.fromarray(ramp), kind)))
    assert np.array_equal(result[..., 0], np.floor(ramp / 257.0 + 0.5).astype(np.uint8))


def test_a_cmyk_jpeg_is_not_inverted() -> None:
    red, green, blue = pixel(load_image(encoded(plain("CMYK", (0, 255, 255, 0)), "JPEG")))
    assert red > 250
    assert green < 5
    assert blue < 5


# -- animation and orientation ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_an_animation_shows_its_first_frame(kind: str) -> None:
    frames = [plain("RGB", "red"), plain("RGB", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert pixel(load_image(data)) == (255, 0, 0)
    with Image.open(io.BytesIO(data)) as later:
        later.seek(1)
        assert pixel(load_image(later)) == (255, 0, 0)
        assert later.tell() == 1


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_exif_orientation(kind: str) -> None:
    stored, exif = photo(), Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        result = load_image(encoded(stored, kind, exif=exif))
        assert result.size == ((40, 30) if orientation <= 4 else (30, 40))
        with Image.open(io.BytesIO(encoded(stored, "PNG", exif=exif))) as image:
            assert result.tobytes() == ImageOps.exif_transpose(image).tobytes()
        assert load_image(result).tobytes() == result.tobytes()  # turned once, not once per call
    exif[0x0112] = 9
    assert load_image(encoded(photo(), exif=exif)).tobytes() == photo().tobytes()
    assert load_image(encoded(photo(), exif=b"Exif\0\0 not a TIFF block")).tobytes() == photo().tobytes()


# -- size ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "max_side", "expected"),
    [
        ((1024, 700), 1024, (1024, 700)),
        ((2048, 1001), 1024, (1024, 500)),  # 500.5: Python rounds halves to even
        ((1500, 1000), 1024, (1024, 683)),  # 682.67 rounds up, where truncation gives 682
        ((1, 1), 1024, (28, 28)),
        ((10, 20), 1024, (28, 56)),
        ((27, 1000), 1024, (28, 1024)),  # 28 / 27 would make 1037, so 1024 is the limit and 27.6 rounds to 28
        ((5000, 60), 1024, (1024, 28)),  # 12.3 stretched to 28
        ((200, 3), 28, (28, 28)),
    ],
)
def test_size(size: tuple[int, int], max_side: int, expected: tuple[int, int]) -> None:
    result = load_image(Image.new("RGB", size, (9, 8, 7)), max_side)
    assert result.size == expected
    assert pixel(result) == (9, 8, 7)
    assert load_image(result, max_side).tobytes() == result.tobytes()


@given(st.integers(1, 400), st.integers(1, 400), st.integers(MIN_SIDE, 300))
@settings(max_examples=60, deadline=None)
def test_size_bounds_hold_for_every_shape(width: int, height: int, max_side: int) -> None:
    image = Image.new("L", (width, height))
    if max(width, height) > MAX_RATIO * min(width, height):
        with pytest.raises(ImageError, match="thinner"):
            load_image(image, max_side)
        return
    result = load_image(image, max_side)
    assert min(result.size) >= MIN_SIDE
    assert max(result.size) <= max_side
    assert load_image(result, max_side).size == result.size


@pytest.mark.parametrize("magic", [b"P1", b"P2", b"P3"])
def test_plain_netpbm_is_refused_before_its_comments_are_read(magic: bytes) -> None:
    with pytest.raises(ImageError, match="save it as PNG"):
        load_image(magic + b" 64 64 255\n" + b"#a\n" * 500_000 + b"1 " * 3 * 64 * 64)


# -- one function for every source -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000"])
def test_bytes_path_and_pil_give_the_same_pixels(kind: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if kind in ("PNG", "JPEG", "WEBP", "TIFF") else {}
    data = encoded(photo(120, 80), kind, **options)
    path = tmp_path / "no suffix needed"
    path.write_bytes(data)
    results = [load_image(source, 64) for source in (data, path, str(path))]
    with Image.open(path) as lazy:
        results.append(load_image(lazy, 64))
    assert {result.size for result in results} == ({(43, 64)} if options else {(64, 43)})
    assert len({result.tobytes() for result in results}) == 1


def test_the_given_pil_image_stays_as_it_was() -> None:
    image = photo(120, 80)
    image.info["note"] = "kept"
    before = image.tobytes()
    resized = load_image(image, 60)
    assert resized.tobytes() == image.resize((60, 40), Image.Resampling.BICUBIC).tobytes()
    resized.putpixel((0, 0), (255, 255, 255))
    load_image(image).putpixel((0, 0), (255, 255, 255))
    assert image.tobytes() == before
    assert image.info == {"note": "kept"}


# -- refused ---------------------------------------------------------------------------------------------


def refused(source: object, **options: int) -> str:
    with pytest.raises(ImageError) as caught:
        load_image(source, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_a_bomb_is_refused_by_its_header_alone() -> None:
    # 20,000 x 20,000 = 400 million pixels declared by a file of a few bytes: nothing was decoded, because
    # the pixel data is one byte and decoding it would be an error of another kind.
    bomb = png(20_000, 20_000, data=b"\0")
    assert len(bomb) < 100
    assert "67,108,864 pixels" in refused(bomb)


def test_the_pixel_limit_is_exact_and_the_callers_own_settings_stay() -> None:
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a caller who silenced Pillow's warning is still protected
        assert load_image(png(100, 100), max_pixels=10_000).size == (100, 100)
        assert "9,999 pixels" in refused(png(100, 100), max_pixels=9_999)
        assert "4,000 pixels" in refused(png(100, 100), max_pixels=4_000)
    assert limit == Image.MAX_IMAGE_PIXELS
    assert "9,999 pixels" in refused(Image.new("1", (100, 100)), max_pixels=9_999)


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_text_chunk_bomb_is_refused(place: str) -> None:
    # 3 MB of text in a compressed chunk of 3 kB, before or behind the pixels.
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a" * 3_000_000, 9))
    assert len(text) < 4_000
    assert "MAX_TEXT_CHUNK" in refused(png(SIDE, SIDE, **{place: text}))


@pytest.mark.filterwarnings("ignore:Truncated File Read")
def test_a_truncated_or_corrupt_file_is_refused() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF"):
        data = encoded(Image.fromarray(noise), kind)
        for share in (0.02, 0.3, 0.6, 0.9):
            refused(data[: int(len(data) * share)])
    corrupt = bytearray(encoded(photo()))
    corrupt[corrupt.index(b"IDAT") + 8] ^= 0xFF  # the checksum no longer fits
    # The last would start Ghostscript.
    for data in (bytes(corrupt), b"", b"this is text", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
        refused(data)


@given(
    st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM", "JPEG2000", "AVIF"]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=150, deadline=None)
def test_no_damage_escapes_as_another_error(kind: str, random: object) -> None:
    data = bytearray(encoded(photo(), kind))
    for _ in range(random.randint(1, 8)):  # type: ignore[attr-defined]
        data[random.randrange(len(data))] = random.randrange(256)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on damaged metadata
        with contextlib.suppress(ImageError):
            assert load_image(bytes(data), max_pixels=1_000_000).mode == "RGB"


def test_sources_that_are_no_image(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "missing.png")
    assert "Is a directory" in refused(tmp_path)
    assert "download it first" in refused("https://example.org/a.png")
    assert "ndarray" in refused(np.zeros((4, 4)))
    assert "NoneType" in refused(None)
    assert "0x5" in refused(Image.new("RGB", (0, 5)))
    assert "thinner than the allowed 1:200" in refused(Image.new("L", (1, 201)))


def test_settings_that_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdapterError, match="max_side is 27"):
        load_image(photo(), 27)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(AdapterError, match="LOAD_TRUNCATED_IMAGES"):
        load_image(photo())


# -- real pictures ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_mathvision_picture_loads(shared_data: Path) -> None:
    table = pyarrow.parquet.read_table(shared_data / "mathvision", columns=["decoded_image"])
    sizes = [load_image(row["bytes"], 448).size for row in table["decoded_image"].to_pylist()]
    assert len(sizes) == 304
    assert max(max(size) for size in sizes) <= 448
    assert min(min(size) for size in sizes) >= MIN_SIDE
