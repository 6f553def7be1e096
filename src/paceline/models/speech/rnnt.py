"""RNN transducer of MLPerf Training v1.0 to v3.1, from an utterance of 12.3 s to the logits of its text: 49 M parameters.

Source: Graves 2012 (arXiv:1211.3711) in the form of mlcommons/training, rnn_speech_recognition (baseline_v3-1023sp.yaml):
three spectra of 80 bins together, two LSTM layers of 1024 units, two steps stacked, three layers more; two layers of 512 units
over the text; a joint layer of 512 for each pair of a step and a piece of text, over 1,023 pieces and the blank.

LibriSpeech has 960 h in 281,241 utterances, 12.3 s at the mean, and 9.4 M words: 60 pieces an utterance are about three
characters each (assumed). All utterances are of one length. The transducer's loss is counted as a softmax over its logits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS, FEATURES, PIECES = 410, 240, 60
_VOCABULARY, _ENCODER, _TEXT, _JOINT = 1024, 1024, 512, 512


class Rnnt(nn.Module):
    """RNN transducer, from stacked spectra (B, 410, 240) to log probabilities (B, 205, 61, 1024)."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LSTM(FEATURES, _ENCODER, 2, batch_first=True, dropout=0.1)
        self.after = nn.LSTM(2 * _ENCODER, _ENCODER, 3, batch_first=True, dropout=0.1)
        self.pieces = nn.Embedding(_VOCABULARY - 1, _TEXT)
        self.text = nn.LSTM(_TEXT, _TEXT, 2, batch_first=True, dropout=0.3)
        self.join_speech, self.join_text = nn.Linear(_ENCODER, _JOINT), nn.Linear(_TEXT, _JOINT)
        self.drop_speech, self.drop_text, self.drop = nn.Dropout(0.1), nn.Dropout(0.3), nn.Dropout(0.3)
        self.head = nn.Linear(_JOINT, _VOCABULARY)

    def forward(self, speech: Tensor) -> Tensor:
        x = self.drop_speech(self.before(speech)[0])
        x = self.drop_speech(self.after(x.unflatten(1, (-1, 2)).flatten(2))[0])
        words = self.pieces(torch.zeros((len(speech), PIECES), dtype=torch.int64, device=speech.device))
        y = self.drop_text(self.text(F.pad(words, (0, 0, 1, 0)))[0])
        joint = self.join_speech(x)[:, :, None] + self.join_text(y)[:, None]
        return F.log_softmax(self.head(self.drop(F.relu(joint))), -1)


def rnnt() -> nn.Module:
    """Return the RNN transducer, from stacked spectra (B, 410, 240) to log probabilities (B, 205, 61, 1024)."""
    return Rnnt()
