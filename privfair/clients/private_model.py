"""Whether a model can be trained privately: Opacus' own rules, and a trial on made-up records."""

from __future__ import annotations

import torch
from torch import nn

from accountant.errors import InputError
from privfair.models import torch_seeded

_RULE = "must be made of layers that can be trained privately"
_RECORDS = 3
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError, NotImplementedError)


def require_private_model(module: nn.Module, features: int | None = None) -> None:
    """Nothing, if DP-SGD bounds what a record can do to this model's training; otherwise `InputError` with the reason.

    Opacus looks at the kinds of the layers only. With the number of features the model is also tried on random
    records: a record's output must not depend on the others, and per-example gradients must be the true ones.
    """
    from privfair.clients.opacus_engine import opacus_objections

    for layer, reason in opacus_objections(module):
        # the rest of Opacus' text on BatchNorm is about its own utilities
        reason = reason.partition("We offer utilities")[0].strip()
        raise InputError("model", _RULE, layer, f"Opacus: {reason}")
    if features is not None:
        modes = [(m, m.training) for m in module.modules()]
        try:
            _require_separate_records(module, features)
            _require_true_gradients(module, features)
        finally:
            for part, training in modes:
                part.training = training


def _require_separate_records(module: nn.Module, features: int) -> None:
    """Nothing, if changing one record leaves the outputs of the others as they are, in training and in use."""
    x = _records(module, features)
    changed = x.clone()
    changed[0] = 3 - 2 * changed[0]
    for training in (True, False):
        module.train(training)
        with torch.no_grad():
            _outputs(module, x[:1])  # a minibatch of one record is a case of its own for many a model
            before, after = _outputs(module, x), _outputs(module, changed)
        if not torch.allclose(before[1:], after[1:], rtol=1e-4, atol=1e-6, equal_nan=True):
            raise InputError(
                "model",
                "must treat every record by itself",
                "an output that depends on the other records of the minibatch",
                "Clipping one record's gradient does not bound what that record does through the others. "
                "Normalise within records (LayerNorm, GroupNorm), not across them.",
            )


def _require_true_gradients(module: nn.Module, features: int) -> None:
    """Nothing, if per-example gradients from Opacus equal those of plain autograd, one record at a time."""
    from privfair.clients.opacus_engine import PerExampleGradients

    module.train()
    trainable = [p for p in module.parameters() if p.requires_grad]
    gradients = PerExampleGradients(module, trainable)
    try:
        outputs = _outputs(module, _records(module, features))
        true = torch.stack([_gradient(output, trainable) for output in outputs]).double()
        found = gradients.of(outputs)
    except _FAILURES as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "model",
            "must have gradients that Opacus can compute record by record",
            str(error).strip().partition("\n")[0],
            "Keep dropout out of modules with parameters of their own, and give every such module one tensor.",
        ) from error
    finally:
        gradients.cleanup()
    scale = max(float(true.abs().max()), 1e-6)
    if not torch.allclose(found, true, rtol=0.0, atol=1e-3 * scale, equal_nan=True):
        raise InputError(
            "model",
            "must use its parameters through the layers that hold them",
            "gradients from Opacus that differ from autograd's",
            "A layer's weight that another module reads directly is not seen.",
        )


def _records(module: nn.Module, features: int) -> torch.Tensor:
    """Random records, always the same, in the type of the parameters."""
    draws = torch.randn(_RECORDS, features, generator=torch.Generator().manual_seed(0))
    return draws.to(next(module.parameters()).dtype)


def _outputs(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One number for each record, with the same dropout every time."""
    with torch_seeded(0, "trial"):
        try:
            result: torch.Tensor = module(x)
        except _FAILURES as error:
            if isinstance(error, InputError):
                raise
            what = str(error).strip().partition("\n")[0]
            raise InputError("model", f"must take {x.shape[1]} features for each of {len(x)} records", what) from error
    if result.shape not in ((len(x), 1), (len(x),)):
        raise InputError("model", "must give one number for each record", f"shape {tuple(result.shape)}")
    return result.reshape(-1)


def _gradient(output: torch.Tensor, trainable: list[nn.Parameter]) -> torch.Tensor:
    """The gradient of one output in all parameters, flat."""
    parts = torch.autograd.grad(output, trainable, retain_graph=True, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(trainable, parts, strict=True)]
    )
