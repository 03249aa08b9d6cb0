from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from retrieval_log import Log, Row, days, declared, fit_data

from models.sequence.export import export
from models.sequence.network import Encoder
from models.sequence.train import SequenceTrainer, TrainingSessions, train
from shortlist.contracts import DataError
from shortlist.evaluation.gates.retrieval import EVALUATION_FILE
from shortlist.slates.retrieval.evaluate import evaluate_retrieval
from shortlist.slates.retrieval.retriever import Retriever, fit_retrieval
from shortlist.slates.retrieval.source import Queries
from shortlist.slates.retrieval.sources.sequence import ENCODER, SequenceSource, _open_encoder, encode_sessions
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.artefacts import read_json


def section(**changes: object) -> SequenceSource:
    plain = {"kind": "sequence", "embedding_dim": 16, "epochs": 30, "batch_events": 64, "sampled_negatives": 8,
             "learning_rate": 0.01, "dropout": 0.1, "last": 8}  # fmt: skip
    return SequenceSource.model_validate(plain | changes)


def circles(users: int = 60) -> list[Row]:
    """Return a log in which every user takes the items 0 to 9 in cyclic order, from a different start."""
    return [(user, (user + place) % 10, 0, "home", 1) for user in range(users) for place in range(7)]


def encoder(last: int = 50, blocks: int = 2) -> Encoder:
    torch.manual_seed(1)
    model = Encoder(16, 2, blocks, last, 0.3).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def newest_first(sessions: list[list[int]], vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(session) for session in sessions])
    events = torch.zeros(len(sessions), int(lengths.max()), vectors.shape[1])
    for line, session in enumerate(sessions):
        events[line, : len(session)] = vectors[session[::-1]]
    return events, lengths


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_encoding_step_by_step_equals_encoding_at_once(blocks: int) -> None:
    model, vectors = encoder(blocks=blocks), torch.randn(30, 16)
    sessions = torch.randint(30, (4, 50)).tolist()
    with torch.no_grad():
        events, lengths = newest_first(sessions, vectors)
        whole = model(events, lengths)
        caches = None
        for place in range(50):
            state, caches = model.step(vectors[[session[place] for session in sessions]], caches)
            torch.testing.assert_close(state, whole[:, 49 - place], rtol=0, atol=1e-5)


def test_a_session_longer_than_the_window_keeps_a_cache_of_the_window() -> None:
    model = encoder(last=5)
    caches = None
    with torch.no_grad():
        for _ in range(10_000 // 100):
            state, caches = model.step(torch.randn(1, 16), caches)
    assert torch.isfinite(state).all()
    assert {cache.keys.shape[2] for cache in caches or ()} == {5}


def test_the_state_does_not_depend_on_padding_or_on_later_events() -> None:
    model, vectors = encoder(), torch.randn(30, 16)
    with torch.no_grad():
        alone = model(*newest_first([[3, 4, 5]], vectors))
        beside = model(*newest_first([[3, 4, 5], list(range(20))], vectors))
        longer = model(*newest_first([[3, 4, 5, 6]], vectors))
        other_state = model(*newest_first([[3, 5, 4]], vectors))
    torch.testing.assert_close(beside[0, :3], alone[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(longer[0, 1:], alone[0], rtol=0, atol=1e-5)
    assert (other_state[0, 0] - alone[0, 0]).abs().max() > 0.01  # the order matters


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_exported_encoder_gives_the_newest_state(tmp_path: Path, blocks: int) -> None:
    model, vectors = encoder(blocks=blocks), torch.randn(30, 16)
    export(model, tmp_path / ENCODER)
    sessions = [[1], [2, 3, 4], list(range(30)), [5] * 50]
    events, lengths = newest_first(sessions, vectors)
    states = encode_sessions(_open_encoder(tmp_path / ENCODER), events.numpy(), lengths.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(states, model(events, lengths)[:, 0].numpy(), atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_stepwise_encoding_equals_the_exported_graph(tmp_path: Path, seed: int) -> None:
    """A random session, step by step through the caches, against the graph: alone, and padded beside all others."""
    torch.manual_seed(seed)
    model, vectors = encoder(blocks=1 + seed % 3), torch.randn(30, 16)
    export(model, tmp_path / ENCODER)
    graph = _open_encoder(tmp_path / ENCODER)
    session = torch.randint(30, (int(torch.randint(2, 51, ())),)).tolist()
    steps, caches = [], None
    with torch.no_grad():
        for item in session:
            state, caches = model.step(vectors[[item]], caches)
            steps.append(state.numpy())
    prefixes = [session[:length] for length in range(1, len(session) + 1)]
    events, lengths = newest_first(prefixes, vectors)
    together = encode_sessions(graph, events.numpy(), lengths.numpy())
    alone = [
        encode_sessions(graph, *(tensor.numpy() for tensor in newest_first([session], vectors))) for session in prefixes
    ]
    np.testing.assert_allclose(together, np.concatenate(steps), rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(alone), np.concatenate(steps), rtol=0, atol=1e-5)


def test_next_items_depend_on_the_last_item(log: Log, tmp_path: Path) -> None:
    inputs = fit_data(log.write(circles()), declared(), 0, max_items=3)
    source = section()
    source.fit(inputs, tmp_path)
    ids = pl.Series([[3, 2, 1], [8], [9, 8, 7]])
    recent = np.full((5, 4), -1, np.int32)
    for line, items in enumerate(ids.to_list()):
        recent[line, : len(items)] = inputs.catalogue.find_rows(pl.Series(items))
    recent[4] = np.resize(inputs.catalogue.find_rows(pl.Series([5, 4])), 4)
    users = pl.Series([1, 2, None, None, 999], dtype=pl.Int64)
    ranked = source.load(tmp_path).retrieve(Queries(users, recent, pl.DataFrame()), 3)
    assert inputs.catalogue.ids.to_numpy()[ranked.items[[0, 1, 2, 4], 0]].tolist() == [4, 9, 0, 6]
    assert ranked.items[3].tolist() == [-1] * 3  # nothing is known of this user
    assert np.isneginf(ranked.scores[3]).all()


def test_one_more_event_changes_the_answer(log: Log, tmp_path: Path) -> None:
    inputs = fit_data(log.write(circles()), declared(), 0, max_items=3)
    source = section(epochs=5)
    source.fit(inputs, tmp_path)
    loaded = source.load(tmp_path)
    two_events, three_events = np.array([[3, 2, -1]], np.int32), np.array([[4, 3, 2]], np.int32)
    states = [
        loaded.query_vectors(Queries(pl.Series([1]), recent, pl.DataFrame())) for recent in (two_events, three_events)
    ]
    assert np.abs(states[0] - states[1]).max() > 0.01


def test_a_long_session_is_encoded_from_its_newest_events(log: Log, tmp_path: Path) -> None:
    inputs = fit_data(log.write(circles()), declared(), 0, max_items=3)
    source = section(epochs=1)
    source.fit(inputs, tmp_path)
    loaded = source.load(tmp_path)
    long = (np.arange(10_000, dtype=np.int32) % 10)[None]
    states = [loaded.query_vectors(Queries(pl.Series([1]), recent, pl.DataFrame())) for recent in (long, long[:, :8])]
    np.testing.assert_array_equal(*states)


def test_an_item_without_positives_is_placed_by_its_columns(log: Log) -> None:
    items = {
        "item_id": [*range(10), 100, 101],
        "topic": [*(str(item % 2) for item in range(10)), "0", "1"],
        "tags": [[]] * 12, "price": [1.0] * 12, "content": [None] * 12,
    }  # fmt: skip
    inputs = fit_data(log.write(circles(), items=items), declared(), 0)
    vectors = train(section(item_columns=["topic"], item_numbers=["price"]), inputs).item_vectors
    rows = inputs.catalogue.find_rows(pl.Series([100, 101, 2, 3], dtype=pl.Int64))
    even_vector, odd_vector = vectors[rows[2]], vectors[rows[3]]
    first, second = vectors[rows[0]], vectors[rows[1]]
    assert (first - second) @ (even_vector - odd_vector) > 0


def test_the_same_seed_gives_the_same_vectors_and_the_loss_falls(log: Log) -> None:
    inputs = fit_data(log.write(circles()), declared(), 0)
    first_run, second_run = (train(section(epochs=6), inputs) for _ in range(2))
    assert np.array_equal(first_run.item_vectors, second_run.item_vectors)
    assert first_run.history[-1]["loss"] < first_run.history[0]["loss"]


def test_a_batch_is_cut_turned_and_masked_as_declared() -> None:
    items = pl.DataFrame({"item_id": range(20)})
    sessions = TrainingSessions.from_events(np.repeat([0, 1, 2], [6, 1, 9]), np.arange(16) % 20, 8)
    assert sessions.lengths.tolist() == [6, 9] and sessions.ends.tolist() == [6, 16]
    counts = np.ones(20, np.int64)

    def batch(**changes: object) -> object:
        return next(SequenceTrainer(section(batch_events=1_000, **changes), items, counts, 1).batches(sessions))

    plain = batch()
    assert plain.inputs_BL.tolist() == [[4, 3, 2, 1, 0, -1, -1, -1], [14, 13, 12, 11, 10, 9, 8, 7]]
    assert plain.targets_T.tolist() == [5, 4, 3, 2, 1, 15, 14, 13, 12, 11, 10, 9, 8]
    turned = batch(reversed=1.0)
    assert turned.inputs_BL[0].tolist() == [1, 2, 3, 4, 5, -1, -1, -1]
    assert turned.targets_T.tolist()[:5] == [0, 1, 2, 3, 4]
    masked = batch(masked=0.5)
    assert 0 < (masked.inputs_BL == 20).sum() < 13 and masked.targets_T.tolist() == plain.targets_T.tolist()
    cut = batch(crops=1.0)
    assert len(cut.targets_T) < 13
    for line, length in zip(cut.inputs_BL, cut.lengths_B, strict=True):
        assert (np.diff(line[:length]) == -1).all() and (line[length:] == -1).all()


def test_joined_sessions_begin_with_another_users_events_before_the_same_item() -> None:
    items = pl.DataFrame({"item_id": range(20)})
    users, events = np.repeat([0, 1, 2], [3, 4, 2]), np.array([5, 6, 7, 1, 2, 5, 8, 9, 9])
    session_starts = set()
    for seed in range(20):
        for last in (8, 3):
            sessions = TrainingSessions.from_events(users, events, last)
            trainer = SequenceTrainer(
                section(batch_events=1_000, joined=1.0, last=last), items, np.ones(20, np.int64), seed
            )
            (batch,) = trainer.batches(sessions)
            ends = np.cumsum(batch.lengths_B)
            targets = np.split(batch.targets_T, ends[:-1])
            lines = zip(batch.inputs_BL, batch.lengths_B, targets, strict=True)
            session_starts |= {
                (last, *line[:length].tolist(), *next_items.tolist()[:1]) for line, length, next_items in lines
            }
            for line, length, next_items in zip(batch.inputs_BL, batch.lengths_B, targets, strict=True):
                assert next_items.tolist()[1:] == line[: length - 1].tolist()  # what follows an event is the next one
                assert (line[length:] == -1).all()
    assert session_starts == {
        (8, 6, 5, 7), (8, 6, 5, 2, 1, 7),  # alone; behind 1, 2 of the second user, who came to 5 by them
        (3, 6, 5, 7), (3, 6, 5, 2, 7),  # no longer than what is encoded
        (8, 5, 2, 1, 8), (3, 5, 2, 1, 8),  # nobody else took 1
        (8, 9, 9), (3, 9, 9), (8, 9, 9, 9), (3, 9, 9, 9),  # one's own past is as good as any
    }  # fmt: skip
    turned = SequenceTrainer(section(batch_events=1_000, joined=1.0, reversed=1.0), items, np.ones(20, np.int64), 1)
    whole = {tuple(line[line >= 0].tolist()) for _ in range(20) for line in turned_inputs(turned, users, events)}
    assert (2, 5, 6, 7) in whole and (6, 7) in whole


def turned_inputs(trainer: SequenceTrainer, users: np.ndarray, events: np.ndarray) -> np.ndarray:
    return next(trainer.batches(TrainingSessions.from_events(users, events, 8))).inputs_BL


def test_sampled_softmax_estimates_the_full_softmax() -> None:
    """The mean loss over draws of columns is that of all items, up to the bias of a logarithm."""
    items = pl.DataFrame({"item_id": range(50)})
    counts = np.arange(50, 0, -1) ** 2
    trainer = SequenceTrainer(section(sampled_negatives=20), items, counts, 1)
    scores, random = torch.randn(50) * 0.5, np.random.default_rng(1)
    whole, sampled = [], []
    for _ in range(400):
        targets = torch.from_numpy(random.choice(50, 16, p=counts / counts.sum()))
        columns = torch.unique(torch.cat([targets, torch.from_numpy(random.integers(0, 50, 20))]))
        sampled_loss = trainer._loss(scores[columns].expand(16, -1), targets, columns)
        sampled.append(float(sampled_loss))
        whole.append(float((torch.logsumexp(scores, 0) - scores[targets]).mean()))
    assert np.mean(sampled) == pytest.approx(np.mean(whole), abs=0.03)


def test_a_log_of_single_events_is_refused(log: Log) -> None:
    inputs = fit_data(log.write([(user, user, 0, "home", 1) for user in range(5)]), declared(), 0)
    with pytest.raises(DataError, match="no user has two positive rows, so nothing follows anything; declare a longer"):
        train(section(), inputs)


def test_a_training_that_diverges_is_refused(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = fit_data(log.write(circles()), declared(), 0)
    monkeypatch.setattr(SequenceTrainer, "item_vectors", lambda self: np.full((10, 16), np.nan, np.float32))
    with pytest.raises(DataError, match="training diverged: items' vectors are not finite; declare a smaller"):
        section(epochs=1).fit(inputs, tmp_path)


def test_a_log_without_a_clock_and_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the order of events is unknown; declare data\.clock: \{kind: column\}"):
        section().check(declared(clock={"kind": "row_order", "days": 5}))
    with pytest.raises(ValueError, match="embedding_dim 16 is no multiple of heads 3"):
        section(heads=3)
    with pytest.raises(ValueError, match="'topik' is no column of a side table of the items; did you mean 'topic'"):
        section(item_columns=["topik"]).check(declared())


def test_evaluation_includes_the_index_of_the_sequence_source(log: Log, tmp_path: Path) -> None:
    rows = [*circles(), *((user, (user + 7) % 10, 1, "home", 1) for user in range(60))]
    declared_sources = {"next": {"kind": "sequence", "embedding_dim": 8, "epochs": 1, "last": 8}}
    retrieval = Retrieval.model_validate({"candidates": 3, "sources": declared_sources})
    table, data = log.write(rows), declared()
    fit_retrieval(retrieval, data, table, days(0), tmp_path / "release", 1)
    evaluate_retrieval(Retriever.open(tmp_path / "release"), data, table, days(1), tmp_path / "evaluation", 1)
    facts = {
        evaluated_list["name"]: evaluated_list
        for evaluated_list in read_json(tmp_path / "evaluation" / EVALUATION_FILE)["lists"]
    }
    assert facts["next"]["index"] == "exact"
