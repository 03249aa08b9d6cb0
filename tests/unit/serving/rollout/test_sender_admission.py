from __future__ import annotations

import polars as pl
import pytest

from shortlist.rollout.evidence.sender_admission import MAX_ADDRESS_SHARE, SenderAdmission, is_backend
from shortlist.spec.serving import BACKEND, Serving


def requests(
    count: int, sender: str | None, users: int | None = None, canary: bool = True, step: int = 0
) -> pl.DataFrame:
    """Return requests of one sender, of as many users (another one for each request by default)."""
    user = pl.int_range(count, dtype=pl.UInt64, eager=True) % (users or count)
    columns = {"sender": pl.Series([sender] * count, dtype=pl.String), "user": user, "canary": [canary] * count}
    return pl.DataFrame(columns).with_columns(step=pl.lit(step, pl.Int32))


def test_a_backend_is_believed_and_an_address_counts_as_one_user() -> None:
    admission = SenderAdmission(is_backend)
    assert admission.admit(requests(1_000, BACKEND)).sum() == 1_000
    invented = admission.admit(requests(1_000, "192.0.2.1"))
    assert (invented.sum(), invented[0]) == (1, True)  # the first of a thousand users, who sent one request
    assert admission.admit(requests(1_000, "192.0.2.1", canary=False)).sum() == 1  # the same user on another track


@pytest.mark.parametrize("sender", ["192.0.2.1", "2001:db8::1", None, "a name that proves nothing"])
def test_a_user_of_an_address_has_a_small_share_of_the_requests(sender: str | None) -> None:
    admission = SenderAdmission(is_backend)
    assert admission.admit(requests(500, sender, users=1)).sum() == 1  # nobody else was there
    assert admission.admit(requests(10_000, BACKEND)).all()
    total = admission.admit(requests(500, sender, users=1)).sum() + 1
    assert total == int(MAX_ADDRESS_SHARE * (10_000 + total))
    assert admission.admit(requests(500, sender, users=1)).sum() == 0


def test_addresses_of_one_network_are_one_sender() -> None:
    admission = SenderAdmission(is_backend)
    one_client = pl.concat([requests(1, f"2001:db8:0:{number:x}::1") for number in range(1, 200)])
    assert admission.admit(one_client).sum() == 1
    others = pl.concat([requests(1, f"2001:db8:{number:x}::1") for number in range(1, 200)])
    assert admission.admit(others).sum() == 199
    assert (
        SenderAdmission(is_backend).admit(pl.concat([requests(1, "::ffff:192.0.2.1"), requests(1, "192.0.2.1")])).sum()
        == 1
    )


def test_many_addresses_without_a_backend_are_evidence_and_few_are_not() -> None:
    thousand = pl.concat([requests(30, f"10.0.{number // 250}.{number % 250}", users=1) for number in range(1_000)])
    assert SenderAdmission(is_backend).admit(thousand).all()
    few = thousand.head(30 * 50)
    assert SenderAdmission(is_backend).admit(few).sum() == 50
    # The same requests in two parts, as a controller reads them while they come.
    admission = SenderAdmission(is_backend)
    parts = [thousand.gather_every(2), thousand.gather_every(2, offset=1)]
    assert sum(admission.admit(part).sum() for part in parts) == thousand.height


def test_declared_networks_vouch_for_their_users() -> None:
    admission = SenderAdmission(Serving(backends=("10.1.0.0/16", "shop")).vouches_for_users)
    assert admission.admit(requests(100, "10.1.2.3")).all()
    assert admission.admit(requests(100, "shop")).all()
    assert admission.admit(requests(100, "10.2.0.1")).sum() == 1
