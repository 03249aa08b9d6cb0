import numpy as np
import polars as pl
import pytest

from shortlist.features.values.hashing import LIMB, PRIME, ROUND_KEYS, TEXT_BASES, codes_of, with_buckets


def buckets_of(*columns: list[int | None], buckets: int) -> list[int]:
    codes = pl.DataFrame({f"{number}": pl.Series(values, dtype=pl.Int64) for number, values in enumerate(columns)})
    return with_buckets(codes.lazy(), "bucket", codes.columns, buckets).collect()["bucket"].to_list()


def by_hand(values: tuple[int, ...], buckets: int) -> int:
    mixed = 0
    for value in values:
        for limb, key in zip((value % LIMB, value // LIMB), ROUND_KEYS, strict=True):
            mixed = pow(mixed + limb + key, 5, PRIME)
    return mixed % (buckets - 1) + 1


@pytest.mark.parametrize("value", [0, 1, -1, 2**31 - 1, 2**40 + 7, -(2**63), 2**63 - 1])
def test_bucket_is_the_documented_arithmetic_for_any_integer(value: int) -> None:
    assert buckets_of([value], [3], buckets=2**31 - 1) == [by_hand((value, 3), 2**31 - 1)]


def test_fifth_power_permutes_the_residues() -> None:
    assert (PRIME - 1) % 5 != 0


def test_cross_depends_on_the_order_of_its_columns() -> None:
    first_codes, second_codes = list(range(100)), list(range(100, 200))
    same = sum(
        a == b
        for a, b in zip(
            buckets_of(first_codes, second_codes, buckets=10**6),
            buckets_of(second_codes, first_codes, buckets=10**6),
            strict=True,
        )
    )
    assert same == 0


def test_equal_values_do_not_cancel() -> None:
    values = list(range(1_000))
    assert len(set(buckets_of(values, values, buckets=2**31 - 1))) == 1_000


def test_only_a_null_gives_0() -> None:
    assert buckets_of([None, 1, None, 1], [1, None, None, 1], buckets=2) == [0, 0, 0, 1]


def test_buckets_are_evenly_filled_by_a_grid_of_small_integers() -> None:
    first, second = np.repeat(np.arange(300), 300), np.tile(np.arange(300), 300)
    ids = buckets_of(first.tolist(), second.tolist(), buckets=1_001)
    counts = np.bincount(ids, minlength=1_001)
    assert counts[0] == 0
    # chi-squared over its degrees of freedom is 1 by chance, with a standard deviation of sqrt(2 / 1000)
    assert ((counts[1:] - 90) ** 2 / 90).sum() / 999 == pytest.approx(1.0, abs=5 * (2 / 1_000) ** 0.5)


def test_code_of_an_integer_is_itself_and_of_a_text_its_fingerprint() -> None:
    assert codes_of(pl.Series([5, None, -3], dtype=pl.Int32)).to_list() == [5, None, -3]
    text = "né"
    first, second = (sum((byte + 1) * base**at for at, byte in enumerate(text.encode())) % PRIME for base in TEXT_BASES)
    assert codes_of(pl.Series(["", text, None])).to_list() == [0, first * 2**31 + second, None]


def test_code_of_a_text_does_not_depend_on_its_neighbours() -> None:
    texts = pl.Series(["abc", None, "", "x" * 1_000, "abc"])
    assert codes_of(texts).to_list() == [codes_of(texts.slice(at, 1))[0] for at in range(5)]


def test_texts_with_the_same_letters_differ() -> None:
    texts = pl.Series(["ab", "ba", "a", "b", "aa", "abc", "acb", "\x00", "\x00\x00"])
    assert codes_of(texts).n_unique() == len(texts)
