"""What the public names are called elsewhere, and which file they are in.

Each entry of the API ends with both, so that the search box finds an entry by its name in
Optax, in torch and in its paper. Names in Optax are in the tables and lists of
`docs/coming_from_optax.md`, those of torch's schedulers in `docs/api/schedules.md`, and
all others here. This file is an extension of griffe and a hook of MkDocs.
"""

import collections
import functools
import html
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import griffe


_DOCS = pathlib.Path(__file__).parents[1]

# Names with a dot are looked up in torch by a test, and the others in titles of papers.
OTHERS = {
    "eqopt.AMSGrad": ["torch.optim.Adam(amsgrad=True)"],
    "eqopt.APOLLO": ["approximated gradient scaling"],
    "eqopt.Adadelta": ["torch.optim.Adadelta"],
    "eqopt.Adafactor": ["torch.optim.Adafactor"],
    "eqopt.Adagrad": ["torch.optim.Adagrad", "adaptive subgradient method"],
    "eqopt.Adam": ["torch.optim.Adam", "adaptive moment estimation"],
    "eqopt.AdamW": ["torch.optim.AdamW", "decoupled weight decay regularization"],
    "eqopt.Adamax": ["torch.optim.Adamax"],
    "eqopt.Adan": ["adaptive Nesterov momentum algorithm"],
    "eqopt.AdaptiveGradClip": ["AGC", "adaptive gradient clipping"],
    "eqopt.AddCorrelatedNoise": ["banded matrix factorization", "BISR", "DP-FTRL"],
    "eqopt.AddDecayedWeights": ["AdamC", "cautious weight decay"],
    "eqopt.CAME": ["confidence-guided adaptive memory efficient optimization"],
    "eqopt.COCOB": ["continuous coin betting"],
    "eqopt.Cautious": ["cautious optimizers", "C-AdamW", "C-Lion"],
    "eqopt.Clip": ["torch.nn.utils.clip_grad_value_"],
    "eqopt.ClipByGlobalNorm": ["torch.nn.utils.clip_grad_norm_"],
    "eqopt.DPSGD": ["DP-SGD"],
    "eqopt.DiLoCo": ["distributed low-communication training"],
    "eqopt.DynamicLossScale": ["torch.amp.GradScaler"],
    "eqopt.GPA": ["generalized primal averaging"],
    "eqopt.GaLore": ["gradient low-rank projection"],
    "eqopt.Hyperball": ["AdamH", "MuonH", "SOAP-H"],
    "eqopt.LAMB": ["layerwise adaptive large batch optimization"],
    "eqopt.LARS": ["layer-wise adaptive rate scaling"],
    "eqopt.LBFGS": ["torch.optim.LBFGS", "limited-memory BFGS"],
    "eqopt.Lion": ["evolved sign momentum"],
    "eqopt.MADGRAD": ["momentumized, adaptive, dual averaged gradient"],
    "eqopt.MARS": ["make variance reduction shine"],
    "eqopt.MoMo": ["momentum models"],
    "eqopt.MOSO": ["momentum one-sided SOAP"],
    "eqopt.MultiSteps": ["gradient accumulation"],
    "eqopt.Muon": ["torch.optim.Muon", "momentum orthogonalized by Newton-Schulz"],
    "eqopt.NAMO": ["NAMO-D"],
    "eqopt.NAdam": [
        "torch.optim.NAdam",
        "Nesterov-accelerated adaptive moment estimation",
    ],
    "eqopt.NAdamW": ["torch.optim.NAdam(decoupled_weight_decay=True)"],
    "eqopt.Orthogonalize": [
        "Newton-Schulz iteration",
        "polar decomposition",
        "MuonEq",
        "Muon+",
    ],
    "eqopt.OuterNesterov": ["SNOO", "MuLoCo"],
    "eqopt.PSGDKron": ["preconditioned stochastic gradient descent", "Kron"],
    "eqopt.ParamEMA": ["torch.optim.swa_utils.AveragedModel"],
    "eqopt.Partition": ["parameter groups"],
    "eqopt.Offload": ["ZeRO-Offload"],
    "eqopt.PolyakSGD": ["Polyak step size"],
    "eqopt.QKClip": ["QK-Clip", "MuonClip"],
    "eqopt.RAdam": ["torch.optim.RAdam", "rectified Adam"],
    "eqopt.RMSprop": ["torch.optim.RMSprop"],
    "eqopt.Rprop": ["torch.optim.Rprop", "resilient backpropagation"],
    "eqopt.SAM": ["sharpness-aware minimization"],
    "eqopt.SGD": ["torch.optim.SGD", "heavy ball", "Nesterov accelerated gradient"],
    "eqopt.SM3": ["square-root of minima of sums of maxima of squared gradients"],
    "eqopt.SOAP": ["Shampoo with Adam in the preconditioner's eigenbasis"],
    "eqopt.SODA": ["optimistic dual averaging"],
    "eqopt.SWA": ["torch.optim.swa_utils.AveragedModel", "stochastic weight averaging"],
    "eqopt.Scion": ["stochastic conditional gradient with operator norms"],
    "eqopt.Signum": ["signSGD with momentum"],
    "eqopt.Sophia": ["second-order clipped stochastic optimization"],
    "eqopt.ZeRO1": ["torch.distributed.optim.ZeroRedundancyOptimizer"],
    "eqopt.checkpoint.merge": ["WSM", "warmup-stable and merge", "model merging"],
    "eqopt.losses.cosine_similarity": ["torch.nn.functional.cosine_similarity"],
    "eqopt.losses.ctc_loss": ["torch.nn.functional.ctc_loss"],
    "eqopt.losses.huber_loss": ["torch.nn.functional.huber_loss"],
    "eqopt.losses.kl_divergence": ["torch.nn.functional.kl_div"],
    "eqopt.losses.kl_divergence_with_log_targets": [
        "torch.nn.functional.kl_div(log_target=True)"
    ],
    "eqopt.losses.ntxent": ["normalized temperature-scaled cross entropy", "SimCLR"],
    "eqopt.losses.sigmoid_binary_cross_entropy": [
        "torch.nn.functional.binary_cross_entropy_with_logits"
    ],
    "eqopt.losses.softmax_cross_entropy": ["torch.nn.functional.cross_entropy"],
    "eqopt.losses.softmax_cross_entropy_with_integer_labels": [
        "torch.nn.functional.cross_entropy"
    ],
    "eqopt.losses.squared_error": ["torch.nn.functional.mse_loss"],
    "eqopt.losses.triplet_margin_loss": ["torch.nn.functional.triplet_margin_loss"],
    "eqopt.schedules.InverseSquareRoot": ["Noam schedule"],
    "eqopt.schedules.WarmupStableDecay": ["WSD", "trapezoidal schedule"],
    "eqopt.second_order.hvp": ["torch.autograd.functional.hvp"],
}


@functools.cache  # for each build, see `on_config`
def other_names() -> dict[str, list[str]]:
    """Each public name that has other names, with these: Optax's come first."""
    found = collections.defaultdict(list)
    for row in _rows("coming_from_optax.md"):
        for ours in re.findall(r"\[`(eqopt[^`]*)`\]", row[1]):
            found[ours] += re.findall(r"`((?:optax|eqx)\.[^`]*)`", row[0])
    for same in _same("coming_from_optax.md"):
        found[f"eqopt.{same}"] += [f"optax.{same}"]
    for row in _rows("api/schedules.md"):
        theirs = re.match(r"`(\w+)\(opt", row[0])
        for ours in re.findall(r"^`(\w+)\(|\[`eqopt\.(\w+)`\]", row[1]):
            if theirs and any(ours):
                full = f"eqopt.schedules.{ours[0]}" if ours[0] else f"eqopt.{ours[1]}"
                found[full].append(f"torch.optim.lr_scheduler.{theirs[1]}")
    for ours, names in OTHERS.items():
        found[ours] += names
    return {ours: [*dict.fromkeys(names)] for ours, names in found.items()}


def _rows(page: str) -> Iterator[list[str]]:
    """The rows of all tables on a page, as their cells."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    for line in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
        yield [cell.strip() for cell in line.split("|")]


def _same(page: str) -> Iterator[str]:
    """The names in lists of names that are the same, such as "- `tree`: `add`, `sub`"."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    for room, names in re.findall(r"^- `(\w+)`: ((?:`\w+`,?\s+)+)", text, re.MULTILINE):
        for name in re.findall(r"\w+", names):
            yield f"{room}.{name}"


class OtherNames(griffe.Extension):
    """Ends each entry with its other names, and the file that it is in."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        if pkg.name != "eqopt":
            return
        known = {
            pkg[name.removeprefix("eqopt.")].canonical_path: others
            for name, others in other_names().items()
        }
        for found in _entries(pkg):
            if found.docstring is None:
                found.docstring = griffe.Docstring("", parent=found)
            footer = _footer(found, known.get(found.path, []))
            found.docstring.value += f"\n\n{footer}\n{{ .about }}\n"


def _entries(parent: griffe.Module) -> Iterator[griffe.Object]:
    for member in parent.members.values():
        if isinstance(member, griffe.Module):
            yield from _entries(member)
        elif isinstance(member, griffe.Object) and member.name[0] != "_":
            yield member


def _footer(found: griffe.Object, others: list[str]) -> str:
    source = f"Source: `src/{found.relative_package_filepath.as_posix()}`."
    if not others:
        return source
    names = (f"`{name}`" if "." in name else name for name in others)
    return f"Also known as {', '.join(names)}. {source}"


def on_config(config: Any) -> None:
    """Reads the tables again for each build, which `mkdocs serve` makes many of.

    Without the address of a repository, MkDocs would link "edit" to a folder of the site.
    """
    other_names.cache_clear()
    if not config.repo_url:
        config.edit_uri = None


_HEADING = re.compile(r'(<h\d id="(eqopt\.[\w.]+)" class="doc.*?)(</h\d>)', re.DOTALL)
_SOURCE = re.compile(r"(?<=Source: )<code>(src/[^<]+)</code>")


def on_page_content(content: str, *, config: Any, **kwargs: object) -> str:
    """Puts the other names into the headings, too, where they are not shown.

    The search box ranks what is in a heading first, and shows it among its results. If
    the repository has an address, the names of source files become links.
    """
    others = other_names()
    if config.repo_url:
        tree = f"{config.repo_url.rstrip('/')}/blob/main"
        content = _SOURCE.sub(rf'<a href="{tree}/\1">\g<0></a>', content)

    def with_names(found: re.Match[str]) -> str:
        names = html.escape(" ".join(others.get(found[2], [])))
        hidden = f"<span hidden> {names}</span>" if names else ""
        # On small screens, a long name is broken after a dot.
        title = re.sub(r"(?<=\w)\.(?=\w[^<>]*<)", ".<wbr>", found[1])
        return f"{title}{hidden}{found[3]}"

    return _HEADING.sub(with_names, content)
