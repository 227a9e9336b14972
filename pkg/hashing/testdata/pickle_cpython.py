"""Prints pickle_cpython.json: SHA-256 digests of pickles at the edges of the format, by CPython's own pickler.

The strings are decoded afresh for each mention, as msgspec decodes those of a request, because a pickle depends on which
strings are one object in memory. The tag "mm" is a constant, as in vLLM's source.
"""
import hashlib
import json
import pickle
import sys

PARENT = bytes(range(32))


def fresh(s):
    return bytes(s, "utf-8").decode("utf-8")


def case(name, tokens=(), lora=None, mm=(), salt=None):
    """tokens: [first, count], counting up."""
    extra = ()
    if lora:
        extra += (("lora", fresh(lora[0]), fresh(lora[1])),)
    extra += tuple(("mm", fresh(i), o) for i, o in mm)
    if salt:
        extra += (("cache_salt", fresh(salt[0] * salt[1])),)
    block = (PARENT, tuple(range(tokens[0], tokens[0] + tokens[1])), extra or None)
    return {
        "name": name, "first_token": tokens[0], "tokens": tokens[1], "lora": lora, "mm": [{"id": i, "offset": o} for i, o in mm],
        "salt": salt and {"text": salt[0], "times": salt[1]},
        "sha256": hashlib.sha256(pickle.dumps(block, protocol=5)).hexdigest(),
    }


cases = [case(f"{n} tokens", (250, n)) for n in (1, 2, 3, 4, 16)]
cases += [case(f"{n} tokens, several frames", (70000, n)) for n in (13000, 13099, 13100, 13101, 22000, 70000)]
cases += [case(f"token {t}", (t, 4)) for t in (2**16 - 2, 2**31 - 2, 2**32 - 4)]
cases += [case(f"offset {o}", (1, 4), mm=[("an-image", o)]) for o in
          (0, 255, 256, 65536, -1, -(2**31), -(2**31) - 1, 2**31, 2**39 - 1, 2**39, -(2**39), 2**63 - 1, -(2**63))]
cases += [
    case("one-character strings are one object", (1, 4), lora=("x", "x"), mm=[("é", 0), ("é", 2)], salt=("x", 1)),
    case("one character outside Latin-1 is not", (1, 4), lora=("€", "€"), mm=[("ā", 0), ("ā", 2)], salt=("€", 1)),
    case("the empty string is one object", (1, 4), lora=("ab", ""), mm=[("", 0)]),
    case("equal long strings are several objects", (1, 4), lora=("ab", "ab"), mm=[("mm", 0), ("ab", 2)], salt=("ab", 1)),
    case("references beyond 255", (1, 512), mm=[(f"image-{i}", i) for i in range(140)] + [("q", 200), ("q", 210)], salt=("q", 1)),
]
cases += [case(f"salt of {n} bytes", (1, 4), salt=("s", n)) for n in (255, 256, 65535, 65536, 65537)]
json.dump(cases, sys.stdout, indent=1, ensure_ascii=False)
print()
