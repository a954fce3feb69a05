"""Matrix products by MKL or by oneDNN: chosen by a rule, equal to rounding, and never the caller's setting."""

from __future__ import annotations

import threading

import helpers as h
import numpy as np
import pytest
import torch

import fedcore as fc
from fedcore.engine import products
from fedcore.engine.undisturbed import Held, as_usual

needs_switch = pytest.mark.skipif(products._switch() is None, reason="this torch has no switch for matrix products")
ZEN4 = {"cpu_name": "AMD EPYC", "avx512_f": True, "avx512_vp2intersect": False, "avx_vnni": False, "amx_tile": False}
ZEN5 = {**ZEN4, "avx512_vp2intersect": True, "avx_vnni": True}


@pytest.fixture(autouse=True)
def as_before():
    """The rule decides anew, and nothing that a test has chosen stays."""
    yield
    products.use("auto")
    for cached in (products._is_wide_amd, products._is_accurate):
        cached.cache_clear()


def texts(n=60):
    x = np.random.default_rng(0).integers(0, 80, (n, 3)).astype(np.uint8)
    return fc.data.Source("texts", x, np.arange(n) % 80, x[:15], np.arange(15), 80, text=True)


PRODUCTS = {  # whose products: method, data, model
    "a layer's": (fc.FedAvg(), h.images, "mlp"),
    "a recurrent layer's": (fc.FedAvg(), texts, "lstm"),
    "a sub-model's": (fc.HeteroFL([(1.0, 0.4), (0.5, 0.6)]), h.images, "mlp"),
    "that of W and Y": (fc.DFedAvg(mixing=fc.Complete()), h.images, "mlp"),
}


def trained(kind="a layer's"):
    method, data, model = PRODUCTS[kind]
    fed = fc.federation(data(60), clients=5, model=model)
    return fc.simulate(method, fed, rounds=2, lr=0.1, batch_size=8).params


@pytest.mark.parametrize(
    "cpu",
    [{}, {**ZEN5, "cpu_name": "Intel Xeon"}, {**ZEN5, "avx512_f": False}, {**ZEN5, "amx_tile": True}, ZEN4],
    ids=["unknown", "Intel", "AVX2 alone", "AMX", "Zen 4"],
)
def test_processors_other_than_amds_from_zen_5_on_keep_mkl(cpu, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu, raising=False)
    monkeypatch.setattr(products, "_is_accurate", lambda: True)  # as on those processors, whatever this one is
    products._is_wide_amd.cache_clear()
    assert products.library() == "mkl"


@needs_switch
@pytest.mark.parametrize(("tolerance", "library"), [(4.0, "onednn"), (0.0, "mkl")], ids=["accurate", "less accurate"])
def test_amds_from_zen_5_on_take_onednn_only_if_it_is_as_accurate(tolerance, library, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: ZEN5, raising=False)
    monkeypatch.setattr(products, "TOLERANCE", tolerance)
    errors = iter((1.0, 2.0))  # MKL's, then oneDNN's
    monkeypatch.setattr(products, "_error", lambda: next(errors))
    products._is_wide_amd.cache_clear()
    products._is_accurate.cache_clear()
    assert products.library() == library
    assert fc.federation(h.images(60), clients=5).engine.products == library


@needs_switch
@pytest.mark.parametrize("kind", PRODUCTS)
def test_both_libraries_train_the_same_model_to_rounding_and_each_repeats_its_bits(kind):
    runs = {}
    for library in ("mkl", "onednn"):
        products.use(library)
        runs[library], again = trained(kind), trained(kind)
        assert torch.equal(runs[library], again)
    if products._is_accurate():  # with AMX oneDNN rounds to bfloat16, and only a user's own choice takes it
        h.close(runs["mkl"], runs["onednn"], 1e-4)


@needs_switch
@pytest.mark.parametrize("before", ["none", "bf16"])
def test_the_callers_setting_stands_after_a_round_and_after_an_error(before):
    switch = torch.backends.mkldnn.matmul
    usual, switch.fp32_precision = switch.fp32_precision, before
    try:
        products.use("onednn")
        trained()
        assert switch.fp32_precision == before
        with pytest.raises(ValueError, match="stopped"), products.fastest(), products.fastest():
            raise ValueError(f"stopped in {switch.fp32_precision}")
        assert switch.fp32_precision == before
    finally:
        switch.fp32_precision = usual


@needs_switch
def test_a_thread_that_ends_first_leaves_the_others_their_products():
    products.use("onednn")
    switch, inside, leave = torch.backends.mkldnn.matmul, threading.Event(), threading.Event()

    def first():
        with products.fastest():
            inside.set()
            leave.wait(10)

    one = threading.Thread(target=first)
    one.start()
    inside.wait(10)
    with products.fastest():
        leave.set()
        one.join()
        assert switch.fp32_precision == "bf16"
        with pytest.raises(ValueError, match="while a federation is computing"):
            products.use("mkl")
    assert switch.fp32_precision != "bf16"


def test_a_torch_without_the_switch_trains_by_mkl(monkeypatch):
    monkeypatch.setattr(products, "_switch", lambda: None)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: ZEN5, raising=False)
    for cached in (products._is_wide_amd, products._is_accurate):
        cached.cache_clear()
    assert products.library() == "mkl"
    products.use("onednn")
    assert products.library() == "mkl"
    assert trained().isfinite().all()


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="library='openblas'"):
        products.use("openblas")


@pytest.mark.parametrize("chosen", ["none", "ieee", "tf32"])
def test_convolutions_on_a_gpu_are_tf32_only_where_the_caller_lets_products_be(chosen, monkeypatch):
    cudnn = torch.backends.cudnn
    before = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.deterministic
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with Held().values((torch.backends.cuda.matmul, "fp32_precision", chosen)), as_usual(), as_usual():
        assert cudnn.conv.fp32_precision == cudnn.rnn.fp32_precision == ("tf32" if chosen == "tf32" else "ieee")
        assert cudnn.deterministic
    assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.deterministic) == before
