"""Replacement of a network by a student of Conv-M blocks (``models.vision.compact``), of widths that meet a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.errors import UserError, check_name, shown
from paceline.models.vision.compact import FORMS, conv_m_of
from paceline.slimming.structures.eval_mode import eval_mode
from paceline.slimming.structures.structures import Structures

LEAST, DEEP = 16, 64
"""Pixels of the smallest image accepted, and of the smallest one for the deep form."""
SCALES = tuple(2 ** (step / 2) for step in range(-6, 9))
"""Factors on the published widths. The widest student is the first that computes as much as the whole network."""


def widest(model: nn.Module, inputs: tuple[Any, ...], round_to: int) -> dict[str, Any]:
    """Return the settings of the widest student: about as many multiply-adds as the whole network.

    Args:
        model: images (B, C, H, W) to logits (B, classes). ``inputs``: an example.
        round_to: widths are multiples of it.

    Raises:
        UserError: inputs or outputs of other kinds.
    """
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    given = tuple(each.to(device) if isinstance(each, Tensor) else each for each in inputs)
    if not (len(given) == 1 and isinstance(given[0], Tensor) and given[0].dim() == 4 and given[0].is_floating_point()):
        raise UserError(f"compact takes one batch of images (B, C, H, W), not {_text(given)}", "use method auto")
    (x,) = given
    if min(x.shape[2:]) < LEAST:
        raise UserError(f"compact takes images of {LEAST} x {LEAST} pixels and more, not {_text(given)}", "use method auto")
    output, products = _run(model, x)
    if not (isinstance(output, Tensor) and output.dim() == 2 and len(output) == len(x)):
        raise UserError(f"compact gives logits (B, classes), and this network gives {_text((output,))}", "use method auto")
    form = "deep" if min(x.shape[2:]) >= DEEP else "small"
    made: dict[str, Any] = {}
    for scale in SCALES:
        widths = [-(-int(scale * width) // round_to) * round_to for width in _flat(*FORMS[form])]
        made = _settings(form, x.shape[1], output.shape[1], widths)
        with torch.device("meta"):
            if _run(_built(made), torch.empty_like(x, device="meta"))[1] >= products:
                break
    return made


def student(settings: Mapping[str, Any]) -> nn.Module:
    """Return an untrained student of these settings, in eval mode. The caller's random state is preserved."""
    with torch.random.fork_rng(devices=[]):
        return _built(settings).eval()


def replacement(module: nn.Module, settings: Mapping[str, Any]) -> nn.Module:
    """Return an untrained student that replaces a network: the kind ``conv_m`` of a plan.

    Args:
        settings: ``form``, one of ``FORMS``, ``channels``, ``classes``, ``stem`` and, by stage and block, ``stages``: outputs
            of the 1x1 convolution and of each branch.

    Raises:
        UserError: settings of other kinds.
    """
    made = _built(settings)
    like = next((each for each in module.parameters() if each.is_floating_point()), None)
    return (made if like is None else made.to(like)).train(module.training)


def tied(found: Structures) -> Structures:
    """Return the structures of a student whose branches have equal widths in each block."""
    units = found.units
    for block in [name.removesuffix("plain.weight") for name in units if name.endswith("plain.weight")]:
        found.forest.tie(units[f"{block}plain.weight"][0], units[f"{block}dilated.weight"][0])
        found.forest.tie(units[f"{block}plain.weight"][0], units[f"{block}deconv.weight"][1])
    found.collect()
    return found.without_kernels()


def without(settings: Mapping[str, Any], structures: Structures, removed: set[int]) -> dict[str, Any]:
    """Return the settings of the student without some of the structures of ``tied``."""
    left = [sum(each.number not in removed for each in every) for every in structures.layers().values()]
    return _settings(settings["form"], settings["channels"], settings["classes"], left)


def removed_by(settings: Mapping[str, Any], structures: Structures) -> set[int]:
    """Return the structures of the widest student beyond these widths; inverts ``without``."""
    widths = _flat(settings["stem"], settings["stages"])
    layers = zip(structures.layers().values(), widths, strict=True)
    return {each.number for every, width in layers for each in every[width:]}


def _settings(form: str, channels: int, classes: int, widths: Sequence[int]) -> dict[str, Any]:
    """Return settings with the widths in the order of ``_flat``."""
    stem, *rest = widths
    blocks = iter([list(pair) for pair in zip(rest[::2], rest[1::2], strict=True)])
    stages = [[next(blocks) for _ in stage] for stage in FORMS[form][1]]
    return {"kind": "conv_m", "form": form, "channels": channels, "classes": classes, "stem": stem, "stages": stages}


def _flat(stem: int, stages: Sequence[Sequence[Sequence[int]]]) -> Iterator[int]:
    """Return the widths of a student's layers in order: the stem, then each block's 1x1 convolution and branch."""
    yield stem
    for stage in stages:
        for block in stage:
            yield from block


def _built(settings: Mapping[str, Any]) -> nn.Module:
    form = settings.get("form")
    check_name("form", form, FORMS)
    try:
        numbers = [settings["channels"], settings["classes"], *_flat(settings["stem"], settings["stages"])]
        blocks = [[len(block) for block in stage] for stage in settings["stages"]]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"a compact network of {shown(dict(settings))}", "give its channels, classes, stem and stages"
        ) from error
    wrong = next((each for each in numbers if type(each) is not int or each < 1), None)
    if wrong is not None or blocks != [[2 for _ in stage] for stage in FORMS[str(form)][1]]:
        what = f"a width of {shown(wrong)}" if wrong is not None else f"stages {shown(settings['stages'])}"
        raise UserError(f"{what} in a compact network", f"give whole numbers from 1 up, two for each block of the form {form}")
    return conv_m_of(str(form), settings["channels"], settings["classes"], settings["stem"], settings["stages"])


def _run(model: nn.Module, x: Tensor) -> tuple[Any, int]:
    """Return the output of a network, and the number of its multiply-adds."""
    with eval_mode(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = model(x)
    return output, counter.get_total_flops() // 2


def _text(values: tuple[Any, ...]) -> str:
    """Describe the kinds of values, with the shapes of tensors."""
    shapes = (
        f"{each.dtype} of {tuple(each.shape)}".removeprefix("torch.") if isinstance(each, Tensor) else type(each).__name__
        for each in values
    )
    return " and ".join(shapes) or "nothing"
