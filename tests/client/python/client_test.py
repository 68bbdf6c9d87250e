"""The client: pages in and out, spaces, and what the arguments mean."""

import dataclasses

import kvstow
import numpy as np
import pytest
from conftest import SPEC, Prompt, outcomes
from kvstow.statistics import POWER, STRANGERS, with_power


def test_pages_come_back_as_they_were(space):
    prompt = Prompt(tokens=3 * 64 + 10)
    assert outcomes(space.put(prompt.puts())) == ["STORED"] * 4
    hit = space.lookup(prompt.keys)
    assert (hit.pages, hit.tokens) == (4, 3 * 64 + 10)
    assert hit.lease != 0 and hit
    results = space.get(prompt.keys, lease=hit.lease)
    for i, (result, page) in enumerate(zip(results, prompt.pages)):
        assert result.hit and result.exact
        assert (result.tokens, result.first_position) == (page.shape[2], 64 * i)
        assert bytes(result.data) == page.tobytes()


def test_pages_fill_the_buffers_that_are_given(space):
    prompt = Prompt()
    space.put(prompt.puts())
    out = SPEC.empty(4)
    results = space.get(prompt.keys, out)
    for result, room, page in zip(results, out, prompt.pages):
        assert np.shares_memory(result.data, room)
        np.testing.assert_array_equal(room, page)


def test_a_page_that_is_there_already_is_told(space):
    prompt = Prompt()
    space.put(prompt.puts())
    again = space.put(prompt.puts())
    assert outcomes(again) == ["ALREADY_THERE"] * 4
    assert all(result.stored for result in again)


def test_a_space_whose_name_now_means_another_one_is_not_open(client):
    prompt = Prompt()
    old = client.open_space("changes-hands", SPEC, recipe="raw")
    client.drop_space("changes-hands")
    other = dataclasses.replace(SPEC, revision="another one")
    new = client.open_space("changes-hands", other, recipe="raw")
    assert all(result.stored for result in new.put(prompt.puts()))
    found = old.lookup(prompt.keys)
    assert found.pages == 0 and "another space of that name" in found.message
    assert outcomes(old.get(prompt.keys)) != ["HIT"] * len(prompt.keys)
    assert not any(result.stored for result in old.put(prompt.puts()))
    assert new.lookup(prompt.keys).pages == len(prompt.keys)


def test_a_page_that_is_not_there_is_a_miss(space):
    result = space.get([b"nothing"])[0]
    assert result.outcome == "MISS" and not result.hit
    assert result.data is None
    assert not space.lookup([b"nothing"])


def costs(spec, size=0.5):
    """Every head feels every channel alike."""
    eye = np.eye(spec.head_dim, dtype=np.float32) * size
    return np.broadcast_to(eye, (spec.layers, spec.kv_heads, spec.head_dim, spec.head_dim))


def test_statistics_of_a_model_go_to_a_space_of_recipe_auto(client):
    space = client.open_space("auto", SPEC, recipe="auto")
    assert space.wants_statistics
    blob = kvstow.model_statistics(SPEC, costs(SPEC), costs(SPEC, 2))
    assert space.send_statistics(blob) and not space.wants_statistics
    assert not client.open_space("auto", SPEC, recipe="auto").wants_statistics
    with pytest.raises(ValueError, match="statistics: .*no statistics of a model"):
        other = dataclasses.replace(SPEC, layers=2)
        space.send_statistics(kvstow.model_statistics(other, costs(other), costs(other)))
    raw = client.open_space("raw", SPEC, recipe="raw")
    assert not raw.wants_statistics and not raw.send_statistics(blob)
    assert "its recipe is raw, not auto" in raw.message


def test_auto_goes_by_whether_keys_pass_a_norm(client):
    normed = client.open_space("normed", SPEC, recipe="auto", normed_keys=True)
    assert "keys=2" in normed.pipeline
    assert "keys=1" in client.open_space("usual", SPEC, recipe="auto").pipeline
    with pytest.raises(kvstow.SpaceMismatch, match="norms its keys"):
        client.open_space("usual", SPEC, recipe="auto", normed_keys=True)


def test_slopes_go_with_the_costs(client):
    space = client.open_space("slopes", SPEC, recipe="auto")
    slope = np.full((SPEC.layers, SPEC.kv_heads, SPEC.head_dim), 0.5)
    blob = kvstow.model_statistics(SPEC, costs(SPEC), costs(SPEC), slope, slope)
    assert len(blob) == len(kvstow.model_statistics(SPEC, costs(SPEC), costs(SPEC))) + 8 * slope.size
    assert space.send_statistics(blob)
    for wrong in (slope[0], slope * np.nan):
        with pytest.raises(ValueError, match="slope_v: "):
            kvstow.model_statistics(SPEC, costs(SPEC), costs(SPEC), slope, wrong)
    with pytest.raises(ValueError, match="do not fit"):
        kvstow.model_statistics(SPEC, costs(SPEC), costs(SPEC), slope)


def test_what_foretells_the_entropy_goes_with_the_slopes(client):
    space = client.open_space("entropy", SPEC, recipe="auto")
    slope = np.zeros((SPEC.layers, SPEC.kv_heads, SPEC.head_dim))
    entropy = np.ones(2 * SPEC.kv_heads * SPEC.head_dim + 1)
    parts = (costs(SPEC), costs(SPEC), slope, slope)
    blob = kvstow.model_statistics(SPEC, *parts, entropy)
    assert len(blob) == len(kvstow.model_statistics(SPEC, *parts)) + 4 * entropy.size
    assert space.send_statistics(blob)
    with pytest.raises(ValueError, match="entropy: is not a finite array"):
        kvstow.model_statistics(SPEC, *parts, entropy * np.nan)
    with pytest.raises(ValueError, match="what foretells the model's entropy does not fit"):
        kvstow.model_statistics(SPEC, *parts, entropy[1:])


def test_mean_queries_go_with_statistics(client):
    space = client.open_space("queries", SPEC, recipe="auto")
    slope = np.zeros((SPEC.layers, SPEC.kv_heads, SPEC.head_dim))
    entropy = np.ones(2 * SPEC.kv_heads * SPEC.head_dim + 1)
    parts = (SPEC, costs(SPEC), costs(SPEC), slope, slope, entropy)
    asked = {1: np.full((2 * SPEC.kv_heads, SPEC.head_dim), 0.25)}
    blob = kvstow.model_statistics(*parts, asked)
    assert b"query_means" in blob and b"query_means" not in kvstow.model_statistics(*parts)
    assert asked[1].astype("<f4").tobytes() in blob
    assert space.send_statistics(blob)
    assert b"query_means" in kvstow.rank_statistics(blob, SPEC)
    assert b"query_means" in with_power(blob, 1.5)
    with pytest.raises(ValueError, match="queries: those of layer 1 are no finite array"):
        kvstow.model_statistics(*parts, {1: asked[1] * np.nan})
    with pytest.raises(ValueError, match="mean queries: "):
        kvstow.model_statistics(*parts, {SPEC.layers: asked[1]})


def test_statistics_that_no_model_judged_have_a_power(client):
    space = client.open_space("power", SPEC, recipe="auto")
    slope = np.zeros((SPEC.layers, SPEC.kv_heads, SPEC.head_dim))
    entropy = np.ones(2 * SPEC.kv_heads * SPEC.head_dim + 1)
    blob = kvstow.model_statistics(SPEC, costs(SPEC), costs(SPEC), slope, slope, entropy)
    powered = with_power(blob, STRANGERS)
    assert np.frombuffer(powered[-20:-16], "<f4") == np.float32(POWER)  # a digest follows
    assert space.send_statistics(powered)
    whole = kvstow.rank_statistics(powered, SPEC)
    assert whole == powered


def test_a_rank_sends_its_part_of_its_models_statistics(client):
    model = dataclasses.replace(SPEC, layers=2 * SPEC.layers, kv_heads=2 * SPEC.kv_heads)
    sizes = np.arange(1, 1 + model.layers * model.kv_heads).reshape(model.layers, -1, 1, 1)
    whole = costs(model) * sizes
    part = whole[SPEC.layers :, SPEC.kv_heads :]
    rank = {"first_layer": SPEC.layers, "tensor_rank": 1, "tensor_size": 2}
    blob = kvstow.model_statistics(model, whole, whole)
    found = kvstow.rank_statistics(blob, SPEC, **rank)
    # As if all the model's heads had the rank's errors: there are four times as many.
    assert found == kvstow.model_statistics(SPEC, 4 * part, 4 * part)
    assert client.open_space("rank", SPEC, recipe="auto").send_statistics(found)
    with pytest.raises(ValueError, match=f"of {model.layers} layers"):
        kvstow.rank_statistics(blob, SPEC, first_layer=model.layers)
    with pytest.raises(ValueError, match=f"of {model.kv_heads} KV heads"):
        kvstow.rank_statistics(blob, SPEC)
    with pytest.raises(ValueError, match="blob"):
        kvstow.rank_statistics(b"nothing", SPEC)


def test_costs_that_are_none_are_refused():
    for wrong in (costs(SPEC)[0], costs(SPEC) * np.nan, costs(SPEC) * 0):
        with pytest.raises(ValueError, match="cost_v: "):
            kvstow.model_statistics(SPEC, costs(SPEC), wrong)
    with pytest.raises(ValueError, match="do not fit"):
        kvstow.model_statistics(SPEC, costs(SPEC))
    none = np.array(costs(SPEC))
    none[1, 0] = 0  # a head that nobody reads costs next to nothing
    assert kvstow.model_statistics(SPEC, none, costs(SPEC))


def test_a_lossy_space_says_how_lossy_it_is(client):
    space = client.open_space("lossy", SPEC, recipe="int8")
    prompt = Prompt()
    stored = space.put(prompt.puts())
    assert all(result.stored_bytes < prompt.pages[0].nbytes * 0.6 for result in stored)
    out = SPEC.empty(4)
    results = space.get(prompt.keys, out)
    for result, room, page in zip(results, out, prompt.pages):
        error = float(np.square(room.astype(np.float64) - page.astype(np.float64)).sum())
        energy = float(np.square(page.astype(np.float64)).sum())
        assert not result.exact
        assert error / energy == pytest.approx(result.estimated_error, rel=0.5)
    assert outcomes(space.get(prompt.keys, max_error=1e-9)) == ["MISS"] * 4


def test_ranges_of_layers_and_tokens(space):
    prompt = Prompt(tokens=64)
    space.put(prompt.puts())
    result = space.get(prompt.keys, layers=(2, 3), tokens=(16, 8))[0]
    part = result.data.view(np.float16).reshape(3, 2, 8, 3, 64)
    np.testing.assert_array_equal(part, prompt.pages[0][2:5, :, 16:24])


def test_layers_arrive_in_order_and_end_with_the_final_results(space):
    prompt = Prompt()
    space.put(prompt.puts())
    out = SPEC.empty(4)
    seen = 0
    for layers, results in space.get_layers(prompt.keys, out, layers_per_run=4):
        assert outcomes(results) == ["HIT"] * 4
        if len(layers) == 0:
            break
        assert layers.start == seen
        seen = layers.stop
        np.testing.assert_array_equal(out[:, layers.start : seen], np.stack(prompt.pages)[:, layers.start : seen])
    assert seen == SPEC.layers
    assert all(result.exact for result in results)


def test_layers_go_out_as_they_are_filled(space):
    prompt = Prompt()
    with space.put_layers(prompt.puts()) as put:
        for layers in range(1, SPEC.layers + 1):
            put.filled(layers)
    assert outcomes(put.results()) == ["STORED"] * 4
    assert bytes(space.get(prompt.keys)[3].data) == prompt.pages[3].tobytes()


def test_a_put_of_layers_that_is_given_up_stores_nothing(space):
    prompt = Prompt()
    with pytest.raises(KeyError):
        with space.put_layers(prompt.puts()) as put:
            put.filled(3)
            raise KeyError("the model failed")
    assert not space.lookup(prompt.keys)
    assert not any(result.stored for result in put.results())


def test_delete_pin_and_drop(client):
    space = client.open_space("short-lived", SPEC, recipe="raw")
    prompt = Prompt()
    space.put(prompt.puts())
    assert space.pin(prompt.keys[:1]) == ["HIT"]
    assert space.pin(prompt.keys[:1], pinned=False) == ["HIT"]
    assert space.delete(prompt.keys[:1]) == ["HIT"]
    assert space.delete(prompt.keys[:1]) == ["MISS"]
    assert client.drop_space("short-lived") == 3
    assert client.find_space("short-lived") is None


def test_a_lease_is_given_back(client, space):
    prompt = Prompt()
    space.put(prompt.puts())
    hit = space.lookup(prompt.keys)
    client.release(hit.lease)
    assert space.lookup(prompt.keys, lease=False).lease == 0


def test_attention_goes_with_puts_and_later(client):
    space = client.open_space("attended", SPEC, recipe="int8")
    prompt = Prompt()
    column = kvstow.Column("sum", np.ones((12, 64, 3), np.float32), queries=10)
    assert outcomes(space.put(prompt.puts(columns=[column]))) == ["STORED"] * 4
    reports = space.report_attention([(prompt.keys[0], column), (b"nothing", column)])
    assert outcomes(reports) == ["HIT", "MISS"]
    with pytest.raises(ValueError, match="scores: has 2 axes"):
        space.report_attention([(prompt.keys[0], kvstow.Column("sum", np.ones((12, 64))))])


def test_a_space_is_found_as_it_is(client, space):
    found = client.find_space(space.name)
    assert found.spec == SPEC
    assert found.fingerprint == space.fingerprint
    assert found.open and found.recipe == "raw"


def test_layers_of_a_space_may_have_another_rope(client, space):
    ropes = {"other_rope": kvstow.Rope(theta=1e6), "other_rope_layers": (5, 11)}
    spec = kvstow.KvSpec(**{**fields(SPEC), **ropes})
    client.open_space("two-ropes", spec, recipe="raw")
    assert client.find_space("two-ropes").spec == spec
    with pytest.raises(kvstow.SpaceMismatch, match="other_rope.layers: 5,11 here, 5 asked"):
        less = kvstow.KvSpec(**{**fields(spec), "other_rope_layers": (5,)})
        client.open_space("two-ropes", less, recipe="raw")
    with pytest.raises(ValueError, match="other_rope: its last layer"):
        kvstow.KvSpec(**{**fields(spec), "other_rope_layers": (5, 12)}).native()


def test_the_name_of_another_models_space_is_refused(client, space):
    with pytest.raises(kvstow.SpaceMismatch, match="layers"):
        client.open_space(space.name, kvstow.KvSpec(**{**fields(SPEC), "layers": 13}), recipe="raw")


def test_a_recipe_that_does_not_exist_is_named(client):
    with pytest.raises(ValueError, match="int7"):
        client.open_space("x", SPEC, recipe="int7")


def test_shared_memory_is_writable_and_its_pages_do_not_travel(client, space):
    prompt = Prompt()
    page = prompt.pages[0].nbytes
    room = client.buffer(4 * page)
    assert room.dtype == np.uint8 and room.flags.writeable and room.size >= 4 * page
    pages = [room[i * page : (i + 1) * page] for i in range(4)]
    for part, data in zip(pages, prompt.pages):
        part[:] = data.view(np.uint8).ravel()
    puts = [kvstow.Page(key, part) for key, part in zip(prompt.keys, pages)]
    assert outcomes(space.put(puts)) == ["STORED"] * 4
    room[:] = 0
    assert outcomes(space.get(prompt.keys, pages)) == ["HIT"] * 4
    assert bytes(pages[2]) == prompt.pages[2].tobytes()


def test_a_buffer_outlives_its_client(server):
    client = kvstow.Client(server.address)
    room = client.buffer(1 << 20)
    client.close()
    room[:] = 7
    assert int(room.sum()) == 7 * room.size


def test_keys_are_chained(client):
    keys = kvstow.page_keys(range(200), 64)
    assert len(keys) == 4 and all(len(key) == 32 for key in keys)
    other = kvstow.page_keys([*range(100), 7, *range(101, 200)], 64)
    assert other[0] == keys[0]
    assert set(other[1:]).isdisjoint(keys)
    assert kvstow.page_keys(range(200), 64, extras=[b"salt"])[0] != keys[0]
    assert kvstow.page_keys(range(200), 64, page_extras=[[], [b"image"]])[:1] == keys[:1]
    # docs/FORMAT.md pins the bytes of a key.
    assert kvstow.page_keys([], 64) == []


def test_a_plan_is_the_command_lines():
    plan = kvstow.plan("llama-3.1-8b", recipe=["raw", "int8"])
    assert plan["bytes_per_token"]["raw"] == 131072
    with pytest.raises(ValueError, match="no-such-model"):
        kvstow.plan("no-such-model")


def test_encoded_pages_are_the_servers(server, client):
    prompt = Prompt()
    raw = client.open_space("encoded", SPEC, recipe="int8")
    raw.put(prompt.puts())
    with kvstow.Client(server.address, payload="encoded") as other:
        space = other.open_space("encoded", SPEC, recipe="int8")
        for a, b in zip(raw.get(prompt.keys), space.get(prompt.keys)):
            assert bytes(a.data) == bytes(b.data)


def test_the_servers_log_names_the_trace_of_a_failing_call(server, client):
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

    def no_span():
        raise RuntimeError("no span is open")

    client.open_space("traced", SPEC, recipe="raw")
    other = dataclasses.replace(SPEC, revision="another")
    for traceparent in (lambda: f"00-{trace}-{span}-01", no_span):
        with kvstow.Client(server.address, traceparent=traceparent) as traced:
            with pytest.raises(kvstow.SpaceMismatch):
                traced.open_space("traced", other, recipe="raw")
    assert f'"trace":"{trace}","span":"{span}"' in server.log()


def fields(spec):
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}
