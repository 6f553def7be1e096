// The card at work: frames of the host's TAP interface to the wire and back, until the process is ended.
#pragma once

#include <string>

#include "codec.h"
#include "statistics.h"

namespace paceline::nic {

struct Wires {
    std::string tap, wire;  // names of interfaces in the process's network namespace
    size_t mtu = 1500, send_buffer = size_t{1} << 18;
    double bytes_per_s = 0;  // of the engine each way; 0: as fast as the processor
};

// Throws std::runtime_error where an interface is missing or may not be opened; else does not return.
[[noreturn]] void run(const Wires& wires, const Codec& codec, Statistics* statistics);

}  // namespace paceline::nic
