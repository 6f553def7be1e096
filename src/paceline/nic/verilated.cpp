// Verilator's models of both engines behind a C interface: one frame at a time for a card, or many with stalls for the checks.

#include "Vcompressor.h"
#include "Vdecompressor.h"
#include "verilated_engine.h"

double sc_time_stamp() { return 0; }

namespace {

// Header beats, k, format; and the frame's fp32 values.
template <>
void set(Vcompressor& model, const Registers& registers) {
    model.head = registers.words[0] & 15;
    model.k = registers.words[1] & 15;
    model.scaled = registers.words[2] & 1;
}

template <>
void set(Vdecompressor& model, const Registers& registers) {
    model.head = registers.words[0] & 15;
    model.k = registers.words[1] & 15;
    model.scaled = registers.words[2] & 1;
    model.values = registers.words[3] & 0xffff;
}

template <class Model>
int64_t one(const uint8_t* frame, size_t bytes, const Registers& registers, uint8_t* out, size_t room) {
    uint64_t size = bytes, out_size = 0;
    uint8_t error = 0;
    Job job{1, {frame}, {&size}, &registers, 0, out, room, &out_size, &error, nullptr, nullptr};
    return run<Model>(job) == 1 && error == 0 ? int64_t(out_size) : -1;
}

Registers registers_of(int head_beats, int k, int format, int values) {
    return {{uint32_t(head_beats), uint32_t(k), uint32_t(format), uint32_t(values)}};
}

}  // namespace

extern "C" {

// A frame is head_beats * 32 bytes of header and the payload; so is the result. Returns its bytes; -1: an error of the engine, an
// empty frame, or too little room.
int64_t paceline_engine_compress(const uint8_t* frame, size_t bytes, int head_beats, int k, int format, uint8_t* out, size_t room) {
    return one<Vcompressor>(frame, bytes, registers_of(head_beats, k, format, 0), out, room);
}

int64_t paceline_engine_decompress(const uint8_t* frame, size_t bytes, int head_beats, int k, int format, int values, uint8_t* out,
                                   size_t room) {
    return one<Vdecompressor>(frame, bytes, registers_of(head_beats, k, format, values), out, room);
}

// Frames back to back. registers: eight words of each: head, k, format, values, and four that do not count. seed: of stalls on both sides and of noise on wires that do not
// count; 0: neither. Returns how many came out, or why not: -1 stuck, -2 the output breaks the rules of the stream, -3 too little
// room, -4 an empty frame or a number of header beats out of range.
int64_t paceline_engine_run(int decompress, int64_t count, const uint8_t* frames, const uint64_t* sizes, const Registers* registers,
                            uint64_t seed, uint8_t* out, uint64_t room, uint64_t* out_sizes, uint8_t* errors, uint64_t* times,
                            uint64_t* totals) {
    Job job{count, {frames}, {sizes}, registers, seed, out, room, out_sizes, errors, times, totals};
    return decompress ? run<Vdecompressor>(job) : run<Vcompressor>(job);
}

}  // extern "C"
