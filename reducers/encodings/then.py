"""An encoding of what another encoding sends."""

from typing import TypeAlias

from reducers.encodings.divided import as_it_is
from reducers.encodings.encoding import Codec, Encoding

# A parameter with this annotation says how to encode the numbers that an encoding sends; None is "full".
Then: TypeAlias = Encoding | None


def following(then: Then) -> tuple[Encoding, Codec]:
    """Returns the encoding that follows another one, and its codec; leaves numbers as they are for None.

    Raises:
      ValueError: if it does not encode numbers one by one.

    >>> from reducers.encodings.sign import sign
    >>> following(sign())[1].elementwise
    True
    """
    encoding = as_it_is() if then is None else then
    if encoding.codec is None or not encoding.codec.elementwise:
        raise ValueError("then: must encode numbers one by one, as float8, full, half, quantised and sign do")
    return encoding, encoding.codec
