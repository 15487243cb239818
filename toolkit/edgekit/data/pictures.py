"""Images: decoded safely, oriented, and turned into pixels of one meaning (0 .. 255), whatever they were stored as.

A picture is an array [h, w] (gray) or [h, w, 3] (RGB): uint8, or float32 in 0 .. 255 where the file has 16 bits.
ICC profiles are not applied and CMYK is converted without one, as the usual training pipelines do.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.data.faults import Note, UnreadableError
from edgekit.data.limits import MAX_IMAGE_BYTES, MAX_PIXELS
from edgekit.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

Picture = npt.NDArray[Any]

SUFFIXES = frozenset(
    {".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".webp"}
    | {".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif"}
)
"""Names that are taken for images; what they are is decided by their content."""

_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
_ALPHA = {"RGBA", "LA", "PA", "RGBa", "La"}
_REMEDY = "Remove the file or save it again."
_LARGE = 1 << 23
_LARGE_LOCK = threading.Lock()
_TO_8_BIT = 257.0  # 65535 / 255


def decode(
    source: Path | bytes, *, gray: bool, background: tuple[int, int, int], where: str
) -> tuple[Picture, list[Note]]:
    """Decode an image: first frame, EXIF orientation applied, alpha composited over `background`.

    Args:
        source: the file, or its bytes.
        gray: color is wanted as luma (ITU-R BT.601).
        background: RGB under transparent pixels.
        where: the sample's id, for errors.

    Returns:
        The picture and what is worth telling about it.

    Raises:
        UnreadableError: damaged, not an image, too large, or of a kind whose range of values is unknown.
    """
    with _opened(source, where) as image:
        _check_size(image.size, where)
        # Threads decode small images side by side but large ones one at a time: memory stays that of one large image.
        with _LARGE_LOCK if image.size[0] * image.size[1] > _LARGE else nullcontext():
            return _decoded(image, gray=gray, background=background, where=where)


def _decoded(
    image: Image.Image, *, gray: bool, background: tuple[int, int, int], where: str
) -> tuple[Picture, list[Note]]:
    notes: list[Note] = []
    if getattr(image, "is_animated", False):
        notes.append(Note(rule="image-first-frame", node="", text="several frames: the first is used"))
    image.load()
    upright = _oriented(image, notes)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return np.asarray(upright).astype(np.float32) / np.float32(_TO_8_BIT), notes
    if image.mode in {"I", "F"}:
        raise UnreadableError(
            "32-bit pixels: which range they span is not in the file",
            where=where,
            remedy="Save it with 8 or 16 bits, or as an array.",
        )
    return _pixels(upright, gray=gray, background=background, notes=notes), notes


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Pillow's warnings: size and damage are judged here. Not to be entered by several threads at once."""
    from PIL import Image

    Image.init()  # its plugins are imported before threads race to
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        yield


@contextmanager
def _opened(source: Path | bytes, where: str) -> Iterator[Image.Image]:
    from PIL import Image, UnidentifiedImageError

    try:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        _check_length(size, where)
        Image.init()
        formats = [name for name in _FORMATS if name in Image.OPEN]
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats) as image:
            yield image
    except UnreadableError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        count = re.search(r"\d+", str(error))
        raise _too_large(f" ({count[0]} pixels)" if count else "", where) from None
    except UnidentifiedImageError:
        reason = "empty file" if size == 0 else "not an image of a known format, or its header is damaged"
        raise UnreadableError(reason, where=where, remedy=_REMEDY) from None
    except Exception as error:  # noqa: BLE001 - decoders raise whatever they stumble over in a damaged file
        raise UnreadableError(
            f"damaged image: {str(error) or type(error).__name__}", where=where, remedy=_REMEDY
        ) from None


def _check_length(length: int, where: str) -> None:
    if length > MAX_IMAGE_BYTES:
        raise UnreadableError(f"file of {length} bytes, at most {MAX_IMAGE_BYTES}", where=where, remedy=_REMEDY)


def _too_large(size: str, where: str) -> UnreadableError:
    return UnreadableError(
        f"image too large{size}: at most {MAX_PIXELS} pixels",
        where=where,
        remedy="Scale it down first or remove it.",
    )


def _check_size(size: tuple[int, int], where: str) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise _too_large(f" ({size[0]} x {size[1]})", where)


def _oriented(image: Image.Image, notes: list[Note]) -> Image.Image:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001 - damaged metadata raises anything; the pixels are fine
        notes.append(Note(rule="image-exif-damaged", node="", text="EXIF data cannot be read: taken as upright"))
        return image


def _pixels(image: Image.Image, *, gray: bool, background: tuple[int, int, int], notes: list[Note]) -> Picture:
    if image.mode in _ALPHA or "transparency" in image.info:
        image = _composited(image, background, notes)
    target = "L" if gray or image.mode in {"1", "L"} else "RGB"
    return np.array(image if image.mode == target else image.convert(target))


def _composited(image: Image.Image, background: tuple[int, int, int], notes: list[Note]) -> Image.Image:
    from PIL import Image

    was_gray = image.mode in {"L", "LA", "La", "1"}
    rgba = image.convert("RGBA")
    if rgba.getchannel("A").getextrema() != (255, 255):
        color = ", ".join(str(part) for part in background)
        notes.append(Note(rule="image-alpha", node="", text=f"transparent pixels composited over ({color})"))
        red, green, blue = background
        under = Image.new("RGBA", rgba.size, (red, green, blue, 255))
        rgba = Image.alpha_composite(under, rgba)
    plain = rgba.convert("RGB")
    return plain.convert("L") if was_gray and len(set(background)) == 1 else plain


def resized(picture: Picture, size: tuple[int, int], interpolation: str) -> Picture:
    """Return a picture scaled to (height, width) with Pillow's filters (antialiased when shrinking)."""
    if picture.shape[:2] == size:
        return picture
    from PIL import Image

    how = Image.Resampling[interpolation.upper()]
    if picture.dtype == np.float32 and picture.ndim == 3:  # noqa: PLR2004 - Pillow has no RGB of floats
        planes = [resized(picture[..., channel], size, interpolation) for channel in range(3)]
        return np.stack(planes, axis=2).astype(np.float32, copy=False)
    return np.array(Image.fromarray(picture).resize((size[1], size[0]), how))


def canonical(picture: Picture) -> Picture:
    """Return [h, w] for an RGB picture that is gray: the same content, whichever way it was stored."""
    if picture.ndim == 3 and _is_gray(picture[:1]) and _is_gray(picture):  # noqa: PLR2004 - [h, w, 3]
        return picture[..., 0]
    return picture


def _is_gray(picture: Picture) -> bool:
    return bool((picture[..., 0] == picture[..., 1]).all() and (picture[..., 0] == picture[..., 2]).all())


def is_one(shape: Sequence[int]) -> bool:
    """Say whether a shape is that of one image: [h, w], [h, w, c] or [c, h, w] with c 1 or 3."""
    return len(shape) == 2 or (len(shape) == 3 and (shape[2] in {1, 3} or shape[0] in {1, 3}))  # noqa: PLR2004


def as_picture(array: npt.NDArray[Any], where: str, *, gray: bool) -> Picture:
    """Return an array [h, w], [h, w, c] or [c, h, w] of uint8 or uint16 (c 1 or 3) as a picture.

    Raises:
        InputError: another shape or dtype.
    """
    if array.dtype not in (np.uint8, np.uint16):
        raise InputError(
            f"dtype {array.dtype}: an image is uint8 or uint16",
            where=where,
            remedy='Declare kind = "tensor" with the scaling that these values need.',
        )
    shape = array.shape
    if array.ndim == 3 and shape[2] in {1, 3}:  # noqa: PLR2004 - HWC
        found = array
    elif array.ndim == 3 and shape[0] in {1, 3}:  # noqa: PLR2004 - CHW
        found = np.moveaxis(array, 0, 2)
    elif array.ndim == 2:  # noqa: PLR2004 - HW
        found = array[..., None]
    else:
        raise InputError(
            f"shape {list(shape)} is not an image",
            where=where,
            remedy='Images are [h, w], [h, w, c] or [c, h, w] with 1 or 3 channels; else declare kind = "tensor".',
        )
    if found.shape[2] == 1:
        found = found[..., 0]
    if array.dtype == np.uint16:
        wide = found.astype(np.float32) / np.float32(_TO_8_BIT)
        return wide if wide.ndim == 2 or not gray else wide @ np.array([0.299, 0.587, 0.114], np.float32)  # noqa: PLR2004
    if gray and found.ndim == 3:  # noqa: PLR2004 - HWC
        from PIL import Image

        return np.array(Image.fromarray(np.ascontiguousarray(found)).convert("L"))
    return np.ascontiguousarray(found)
