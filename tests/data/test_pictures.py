"""Decoding: the same picture whichever way it was stored, and damage that is found."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from edgekit.data.faults import UnreadableError
from edgekit.data.limits import MAX_PIXELS
from edgekit.data.pictures import as_picture, canonical, decode
from edgekit.errors import InputError

RNG = np.random.default_rng(7)
COLOR = RNG.integers(0, 256, (20, 30, 3), np.uint8)
GRAY = RNG.integers(0, 256, (20, 30), np.uint8)


def read(data: bytes, *, gray: bool = False, background=(0, 0, 0)):
    found, notes = decode(data, gray=gray, background=background, where="it.png")
    return found, [note.rule for note in notes]


def stored(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_give_the_pixels(kind):
    np.testing.assert_array_equal(read(stored(Image.fromarray(COLOR), kind))[0], COLOR)
    np.testing.assert_array_equal(read(stored(Image.fromarray(GRAY), kind))[0], GRAY)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_exif_orientation_is_applied(kind, orientation):
    # A camera stores rows and columns as they come from the sensor; the tag says how to hold them upright.
    to_upright = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, 1),
    }
    blocks = np.zeros((32, 48, 3), np.uint8)
    blocks[:16, :24], blocks[:16, 24:], blocks[16:, :24] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found, _ = read(stored(Image.fromarray(blocks), kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {})))
    wanted = to_upright[orientation](blocks)
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).mean() < 5


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "JPEG2000"])
def test_16_bit_gray_keeps_range_and_precision(kind):
    wide = RNG.integers(0, 65536, (20, 30), np.uint16)
    wide[0, :2] = 0, 65535
    found, _ = read(stored(Image.fromarray(wide), kind))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wide / 257.0, rtol=1e-6, atol=1e-4)
    assert found.min() == 0
    assert found.max() == 255


def test_16_bit_gray_is_rotated_too():
    wide = RNG.integers(0, 65536, (20, 30), np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 6
    found, _ = read(stored(Image.fromarray(wide), "PNG", exif=exif))
    np.testing.assert_allclose(found, np.rot90(wide, -1) / 257.0, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bit_pixels_of_unknown_range_are_refused(mode):
    with pytest.raises(UnreadableError, match="32-bit"):
        read(stored(Image.new(mode, (4, 4), 70000), "TIFF"))


def test_palette_and_one_bit_images():
    few = Image.fromarray(COLOR).quantize(16)
    np.testing.assert_array_equal(read(stored(few, "PNG"))[0], np.array(few.convert("RGB")))
    bits = Image.fromarray(GRAY).convert("1")
    found, _ = read(stored(bits, "PNG"))
    assert set(np.unique(found)) == {0, 255}


def test_cmyk_is_converted():
    found, _ = read(stored(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    assert np.abs(found.astype(int) - (255, 0, 0)).max() < 10


@pytest.mark.parametrize("background", [(0, 0, 0), (255, 255, 255), (10, 20, 30)])
def test_alpha_is_composited_over_the_background_with_a_note(background):
    alpha = np.zeros((20, 30), np.uint8)
    alpha[:10], alpha[10:15] = 255, 128
    found, notes = read(stored(Image.fromarray(np.dstack([COLOR, alpha])), "PNG"), background=background)
    share = alpha[..., None] / 255
    wanted = COLOR * share + np.array(background) * (1 - share)
    assert np.abs(found - wanted).max() <= 1
    assert notes == ["image-alpha"]


def test_opaque_alpha_is_no_news_and_gray_alpha_stays_gray():
    opaque = Image.fromarray(np.dstack([COLOR, np.full((20, 30), 255, np.uint8)]))
    found, notes = read(stored(opaque, "PNG"))
    np.testing.assert_array_equal(found, COLOR)
    assert notes == []
    found, _ = read(stored(Image.fromarray(np.dstack([GRAY, GRAY * 0 + 255]), "LA"), "PNG"))
    np.testing.assert_array_equal(found, GRAY)


def test_a_transparent_palette_color_is_composited():
    few = Image.fromarray(COLOR).quantize(4)
    found, notes = read(stored(few, "PNG", transparency=0), background=(1, 2, 3))
    assert notes == ["image-alpha"]
    assert (found[np.array(few) == 0] == (1, 2, 3)).all()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_animations_the_first_frame_is_used_with_a_note(kind):
    frames = [Image.new("RGB", (8, 6), color) for color in ("red", "blue")]
    data = stored(frames[0], kind, save_all=True, append_images=frames[1:])
    found, notes = read(data)
    assert notes == ["image-first-frame"]
    assert np.abs(found.astype(int) - (255, 0, 0)).max() < 10


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_truncated_images_are_found(kind, share):
    data = stored(Image.fromarray(COLOR), kind)
    with pytest.raises(UnreadableError):
        read(data[: int(len(data) * share)])


@pytest.mark.parametrize("data", [b"", b"text", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"\0" * 4096])
def test_what_is_no_image_is_found(data):
    with pytest.raises(UnreadableError):
        read(data)


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(8193, 8192), (1, MAX_PIXELS + 1), (12000, 12000), (60000, 60000)])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_above_the_limit_are_refused_by_their_header(size):
    with pytest.raises(UnreadableError, match="image too large"):
        read(png_header(*size))


def test_damaged_exif_leaves_the_image_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = stored(Image.fromarray(COLOR), "JPEG", exif=exif, quality=95)
    at = data.index(b"Exif\0\0") + 6
    found, _ = read(data[:at] + b"\xff" * 12 + data[at + 12 :])
    assert found.shape == COLOR.shape


def test_color_becomes_gray_by_luma():
    found, _ = read(stored(Image.fromarray(COLOR), "PNG"), gray=True)
    np.testing.assert_allclose(found, COLOR @ [0.299, 0.587, 0.114], atol=1)


def test_gray_stored_as_rgb_is_the_same_content():
    np.testing.assert_array_equal(canonical(np.dstack([GRAY] * 3)), GRAY)
    np.testing.assert_array_equal(canonical(COLOR), COLOR)


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 1), (1, 20, 30)])
def test_arrays_of_one_channel_are_pictures(shape):
    np.testing.assert_array_equal(as_picture(GRAY.reshape(shape), "a", gray=False), GRAY)


def test_arrays_of_three_channels_are_pictures_in_both_layouts():
    np.testing.assert_array_equal(as_picture(COLOR, "a", gray=False), COLOR)
    np.testing.assert_array_equal(as_picture(COLOR.transpose(2, 0, 1), "a", gray=False), COLOR)


def test_uint16_arrays_are_scaled_like_16_bit_files():
    wide = RNG.integers(0, 65536, (20, 30, 3), np.uint16)
    np.testing.assert_allclose(as_picture(wide, "a", gray=False), wide / 257, rtol=1e-5)
    luma = wide @ [0.299, 0.587, 0.114] / 257
    np.testing.assert_allclose(as_picture(wide, "a", gray=True), luma, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4), np.float32), np.zeros((4, 4), np.int64), np.zeros((5, 4, 4), np.uint8)]
)
def test_other_arrays_are_no_pictures(array):
    with pytest.raises(InputError):
        as_picture(array, "a", gray=False)
