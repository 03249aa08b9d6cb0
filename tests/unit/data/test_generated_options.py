"""Options of the generated world: each adds what it declares with a known truth, and moves nothing else."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from shortlist.contracts import Columns, best_column
from shortlist.data.best_candidates import best_candidates
from shortlist.data.generate import FIRST_ITEM, FIRST_USER, generate
from shortlist.data.synthetic_world import build_world
from shortlist.spec.data import GeneratedSource

PLAIN: dict[str, Any] = {"kind": "generated", "rows": 30_000, "users": 1_000, "items": 500, "days": 6}
LIKED = best_column("is_like")


def world(**options: Any) -> GeneratedSource:
    return GeneratedSource.model_validate({**PLAIN, **options})


def written(source: GeneratedSource, folder: Path) -> pl.DataFrame:
    generate(source, folder)
    return pl.read_parquet(folder / "impressions" / "*.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def plain(folder: Path) -> pl.DataFrame:
    return written(world(), folder / "plain")


@pytest.fixture(scope="module")
def liked(folder: Path) -> pl.DataFrame:
    return written(world(likes={"rate": 0.3}), folder / "liked")


@pytest.fixture(scope="module")
def contents(folder: Path) -> pl.DataFrame:
    """The log of a world with contents; its items' table lies in `folder/contents`."""
    return written(world(content={"effect": 2.0}), folder / "contents")


@pytest.fixture(scope="module")
def biased(folder: Path) -> pl.DataFrame:
    return written(world(position_bias={"strength": 3.0}), folder / "biased")


def test_likes_add_their_columns_and_move_nothing_else(plain: pl.DataFrame, liked: pl.DataFrame) -> None:
    assert liked.columns == [*plain.columns, "is_like", LIKED]
    assert liked.select(plain.columns).equals(plain)


def test_likes_follow_clicks_as_often_as_declared_and_planted(liked: pl.DataFrame) -> None:
    assert liked.filter(is_click=0)["is_like"].sum() == 0
    assert float(liked["is_like"].to_numpy().sum() / liked["is_click"].to_numpy().sum()) == pytest.approx(0.3, abs=0.03)
    tenths = liked.with_columns(pl.col(LIKED).qcut(10, labels=[str(n) for n in range(10)]).alias("tenth"))
    rates = tenths.group_by("tenth").agg(pl.col("is_like").mean(), pl.col(LIKED).mean())
    np.testing.assert_allclose(rates["is_like"], rates[LIKED], atol=0.02)


def test_the_best_order_by_likes_is_not_the_best_order_by_clicks(liked: pl.DataFrame) -> None:
    likes, clicks = liked["is_like"], liked["is_click"]
    assert roc_auc_score(likes, liked[LIKED]) > roc_auc_score(likes, liked[Columns.BEST]) + 0.03
    assert roc_auc_score(clicks, liked[Columns.BEST]) > roc_auc_score(clicks, liked[LIKED]) + 0.03


def test_contents_move_neither_users_nor_items_nor_when_they_meet(plain: pl.DataFrame, contents: pl.DataFrame) -> None:
    same = ["impression_id", "event_time", "user_id", "item_id", "surface", "device", "position"]
    assert contents.select(same).equals(plain.select(same))
    tenths = contents.with_columns(pl.col(Columns.BEST).qcut(10, labels=[str(n) for n in range(10)]).alias("tenth"))
    rates = tenths.group_by("tenth").agg(pl.col("is_click").mean(), pl.col(Columns.BEST).mean())
    np.testing.assert_allclose(rates["is_click"], rates[Columns.BEST], atol=0.03)


@pytest.mark.parametrize(("column", "told"), [("text_vector", slice(0, 4)), ("image_vector", slice(4, 8))])
def test_each_vector_predicts_its_half_of_the_appeal_of_unseen_items(
    folder: Path, contents: pl.DataFrame, column: str, told: slice
) -> None:
    items = pl.read_parquet(folder / "contents" / "items.parquet")
    known = build_world(world(content={"effect": 2.0})).content
    assert known is not None
    appeal = known.properties_IK[:, told] @ known.common_K[told]
    other = slice(4, 8) if told.start == 0 else slice(0, 4)
    vectors = items[column].to_numpy()
    predicted = Ridge().fit(vectors[:250], appeal[:250]).predict(vectors[250:])
    assert np.corrcoef(predicted, appeal[250:])[0, 1] > 0.9
    untold = known.properties_IK[:, other] @ known.common_K[other]
    assert abs(np.corrcoef(Ridge().fit(vectors[:250], untold[:250]).predict(vectors[250:]), untold[250:])[0, 1]) < 0.3


def test_titles_tell_what_text_vectors_tell(folder: Path, contents: pl.DataFrame) -> None:
    titles = pl.read_parquet(folder / "contents" / "items.parquet")["title"]
    known = build_world(world(content={"effect": 2.0})).content
    assert known is not None
    assert titles.str.split(" ").list.len().unique().to_list() == [6]
    words = r"fast|loud|wild|sharp|bold", r"calm|slow|gentle|quiet|soft"
    fast, calm = (titles.str.count_matches(pattern).cast(pl.Int64) for pattern in words)
    assert np.corrcoef(fast - calm, known.properties_IK[:, 0])[0, 1] > 0.7


def test_new_items_leave_the_contents_of_the_others() -> None:
    drift = {"kind": "new_items", "from_day": 3}
    before, after = (build_world(world(content={}, drifts=drifts)).content for drifts in ((), (drift,)))
    assert before is not None and after is not None
    assert after.properties_IK.shape[0] == 550
    for old, new in zip(before.columns()[1:], after.columns()[1:], strict=True):
        assert new.head(500).equals(old)
    assert after.columns()[0].head(500).equals(before.columns()[0])


def test_the_best_list_of_a_user_is_of_appealing_contents() -> None:
    strong = world(content={"effect": 8.0, "personal": 1.0})
    known = build_world(strong).content
    assert known is not None
    for number in range(3):
        best = best_candidates(strong, pl.Series([FIRST_USER + number]), [strong.start + timedelta(days=2)], 20)
        of_best = known.appeal(np.full(20, number), best[0] - FIRST_ITEM)
        of_all = known.appeal(np.full(500, number), np.arange(500))
        assert of_best.mean() > of_all.mean() + 0.5 * of_all.std()


def test_position_bias_reorders_items_within_a_page_alone(plain: pl.DataFrame, biased: pl.DataFrame) -> None:
    same = ["impression_id", "event_time", "user_id", "surface", "device", "position"]
    assert biased.select(same).equals(plain.select(same))
    shown = [frame.group_by("user_id").agg(pl.col("item_id").sort()).sort("user_id") for frame in (plain, biased)]
    assert shown[0].equals(shown[1])
    assert not biased["item_id"].equals(plain["item_id"])


def test_a_click_is_likelier_at_the_first_position_and_preferred_items_profit(biased: pl.DataFrame) -> None:
    first, planted = biased["first_position_probability"], biased[Columns.BEST]
    at_first = biased["position"] == 1
    assert first.filter(at_first).equals(planted.filter(at_first).alias(first.name))
    assert (first.filter(~at_first) > planted.filter(~at_first)).all()
    often = biased.group_by("item_id").agg(
        pl.len(), pl.col("position").mean(), pl.col(Columns.BEST).mean(), pl.col(first.name).mean()
    ).filter(pl.col("len") > 100)  # fmt: skip
    lost = often[first.name] - often[Columns.BEST]
    assert np.corrcoef(often["position"], lost)[0, 1] > 0.6  # what stands below looks worse than it is
    assert often["position"].to_numpy().std() > 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"content": {"text_width": 2}}, "greater than or equal to 4"),
        ({"likes": {"rate": 1.0}}, "less than 1"),
        ({"position_bias": {"strenght": 1}}, "Extra inputs"),
    ],
)
def test_an_option_out_of_its_bounds_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        world(**options)
