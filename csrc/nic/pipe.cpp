#include "pipe.h"

#include <cstdio>
#include <deque>
#include <vector>

#include "receiver.h"
#include "transmitter.h"

namespace paceline::nic {
namespace {

template <class T>
void write(const T& value) {
    std::fwrite(&value, sizeof value, 1, stdout);
}

void answer(Batch& batch) {
    write(uint32_t(batch.frames.size()));
    for (const Frame& frame : batch.frames) {
        write(uint32_t(sizeof frame.offload + frame.size));
        write(frame.offload);
        std::fwrite(frame.data, 1, frame.size, stdout);
    }
    batch.clear();
}

}  // namespace

int run_pipe(const Codec& codec, size_t mtu, bool merge, Statistics* statistics) {
    Transmitter transmitter(codec, mtu, &statistics->sent);
    Receiver receiver(codec, merge, &statistics->received);
    Batch sent, received;
    std::deque<std::vector<uint8_t>> kept;  // frames that passed, until they are answered
    statistics->ready.set(1);
    for (uint32_t bytes; std::fread(&bytes, sizeof bytes, 1, stdin) == 1;) {
        if (bytes < 1 + sizeof(Offload) || bytes > 1 + sizeof(Offload) + kMostFrame) return 1;
        std::vector<uint8_t>& request = kept.emplace_back(bytes);
        if (std::fread(request.data(), 1, bytes, stdin) != bytes) return 1;
        Frame frame{{}, request.data() + 1 + sizeof(Offload), bytes - 1 - sizeof(Offload)};
        std::memcpy(&frame.offload, request.data() + 1, sizeof frame.offload);
        if (request[0] == 'T') {
            transmitter.transmit(frame, sent);
            answer(sent);
            kept.pop_back();
        } else if (request[0] == 'R' || request[0] == 'F') {
            if (request[0] == 'R') receiver.receive(frame, received);
            if (request[0] == 'R' && merge && !received.full()) {
                write(uint32_t(0));  // what is open may grow
            } else {
                receiver.finish(received);
                answer(received);
                kept.clear();
            }
        } else {
            return 1;
        }
        std::fflush(stdout);
    }
    return 0;
}

}  // namespace paceline::nic
