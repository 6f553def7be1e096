// How fast this processor is as a card: gradients through it in memory, without a network.
#pragma once

#include "codec.h"

namespace paceline::nic {

// Prints packets/s and Gb/s of uncompressed payload, each way, after about so many seconds. Returns the exit code.
int measure(const Codec& codec, size_t mtu, double seconds);

}  // namespace paceline::nic
