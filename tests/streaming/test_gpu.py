"""Streams on a GPU."""

import pytest
import torch

import rankcode as rc
from live_networks import NETWORKS, RULES, assert_same, inputs_for, streamed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NETWORKS)
def test_decisions_are_those_of_offline_inference(name, rule):
    network, rule = NETWORKS[name], RULES[rule]
    rows = inputs_for(network, 12, seed=0, rows=8)
    expected = [rc.decide(network, row[None], rule=rule) for row in rows]
    try:
        network.cuda()
        pool = rc.StreamPool(network, rule, capacity=8)
        ids = [pool.open() for _ in rows]
        for stream, row in zip(ids, rows, strict=True):
            pool.push(stream, row)
            pool.finish(stream)
        together = dict(pool.tick())
        for stream, row, whole in zip(ids, rows, expected, strict=True):
            for found in (together[stream], streamed(rc.Stream(network, rule), [row])):
                assert found.label.is_cuda
                assert_same(rc.Decision(*(part.cpu() for part in found)), whole)
    finally:
        network.cpu()
