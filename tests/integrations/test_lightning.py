"""The callback in Lightning's own Trainer, on the CPU. Last run with lightning 2.6.6."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

lightning = pytest.importorskip("lightning.pytorch", reason="needs lightning: pip install lightning")

import torch  # noqa: E402

import paceline  # noqa: E402
from paceline.integrations.lightning import PacelineCallback  # noqa: E402


class Net(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """One layer that is trained to give zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 32)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """The mean square of what the layer gives."""
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: Any, _: int) -> None:
        """Nothing is measured."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(callback: PacelineCallback, steps: int = 8, **settings: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return lightning.Trainer(accelerator="cpu", max_steps=steps, callbacks=[callback], **{"devices": 1, **quiet, **settings})


def loader(samples: int = 128) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(samples, 64)), batch_size=4)


def test_the_trainer_shows_predicted_beside_measured(capsys: pytest.CaptureFixture[str]) -> None:
    callback = PacelineCallback("lenet5", "A100")
    trainer(callback, accumulate_grad_batches=2).fit(Net(), loader())
    assert len(callback.comparison.steps) == 7
    predicted = callback.comparison.predicted()
    assert (predicted.strategy["global_batch_size"], predicted.strategy["grad_accum_steps"]) == (8, 2)
    assert "paceline: step measured " in (said := capsys.readouterr().err) and ", predicted " in said


def test_steps_beside_a_validation_do_not_count() -> None:
    callback = PacelineCallback("lenet5", "A100")
    trainer(callback, val_check_interval=4).fit(Net(), loader(), loader(8))
    assert len(callback.comparison.steps) == 6


def test_compression_without_ddp_is_refused() -> None:
    with pytest.raises(paceline.UserError, match="compression with SingleDeviceStrategy"):
        trainer(PacelineCallback("lenet5", "A100", compression="terngrad")).fit(Net(), loader())


SCRIPT = """
import json, sys
import torch
sys.path.insert(0, {here!r})
from test_lightning import Net, loader, trainer
from paceline.integrations.lightning import PacelineCallback
callback = PacelineCallback("lenet5", "2 A100", compression="terngrad", min_elements=1)
job, net = trainer(callback, strategy="ddp", devices=2), Net()
seen = {{}}
end = callback.on_train_end
def on_train_end(trainer, module):
    end(trainer, module)
    wrapped = trainer.strategy.model
    every = [None, None]
    torch.distributed.all_gather_object(every, [p.double().sum().item() for p in module.parameters()])
    seen.update(kind=type(wrapped).__name__, hook=str(wrapped._comm_hooks[0][1]), same=every[0] == every[1])
callback.on_train_end = on_train_end
job.fit(net, loader())
if job.global_rank == 0:
    print(json.dumps(seen))
"""


RESUMED = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, {here!r})
from test_lightning import Net, trainer
from paceline.integrations.lightning import KEY, PacelineCallback

def run(steps, save="", resume=None):
    torch.manual_seed(0)
    same = torch.utils.data.TensorDataset(torch.randn(1, 64).repeat(64, 1))  # whatever order a resumed epoch has
    data = torch.utils.data.DataLoader(same, batch_size=4)
    net = Net()
    callback = PacelineCallback("lenet5", "2 A100", compression="topk", min_elements=1)
    job = trainer(callback, steps, strategy="ddp", devices=2, max_epochs=9)
    job.fit(net, data, ckpt_path=resume)
    if save:
        job.save_checkpoint(save)
    return [p.detach().clone() for p in net.parameters()]

place = str(Path({folder!r}) / "half.ckpt")
whole, _ = run(16), run(8, place)
again = run(16, resume=place)
same = all(map(torch.equal, whole, again))
torch.distributed.barrier()
if torch.distributed.get_rank() == 0:
    state = torch.load(place)
    assert len(state.pop(KEY)) == 2
    torch.save(state, place)
torch.distributed.barrier()
differs = not all(map(torch.equal, whole, run(16, resume=place)))
print("RESULT", same, differs, flush=True)
"""


def test_a_resumed_run_continues_with_its_residuals(tmp_path: Path) -> None:
    done = launched(tmp_path, RESUMED)
    assert done.stdout.count("RESULT True True") == 2
    assert "has no state of a compression: residuals start at 0" in done.stderr


def launched(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """A script in two processes."""
    script = folder / "train.py"
    script.write_text(text.format(here=str(Path(__file__).parent), folder=str(folder)))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_compression_runs_in_two_processes(tmp_path: Path) -> None:
    done = launched(tmp_path, SCRIPT)
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert said["kind"] == "DistributedDataParallel" and said["same"] and said["hook"].startswith("TernGrad")
    assert "paceline: step measured " in done.stderr
