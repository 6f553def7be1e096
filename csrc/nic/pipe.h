// The card without a network, for tests: frames come on standard input and go on standard output.
#pragma once

#include "codec.h"
#include "statistics.h"

namespace paceline::nic {

// A request is a u32 of bytes (all integers in the machine's order), a byte 'T' (transmit), 'R' (receive) or 'F' (finish what receive
// keeps open), the offload header of 10 bytes, and the frame. The answer is a u32 of frames, each a u32 of bytes, an offload header and
// the frame. The bytes of a request count its kind, of both the offload header. Ends at the end of the input; returns the exit code.
int run_pipe(const Codec& codec, size_t mtu, bool merge, Statistics* statistics);

}  // namespace paceline::nic
