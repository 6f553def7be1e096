// Verilator's models of the ternary engines behind a C interface, for the checks.

#include "Vternary_adder.h"
#include "Vternary_decoder.h"
#include "Vternary_encoder.h"
#include "verilated_engine.h"

double sc_time_stamp() { return 0; }

namespace {

template <>
struct Inputs<Vternary_adder> {
    static constexpr int kCount = 2;
    static auto& valid(Vternary_adder& model, int k) { return k ? model.beats_2___05Fvalid : model.beats_1___05Fvalid; }
    static auto& ready(Vternary_adder& model, int k) { return k ? model.beats_2___05Fready : model.beats_1___05Fready; }
    static auto& beat(Vternary_adder& model, int k) { return k ? model.beats_2___05Fpayload : model.beats_1___05Fpayload; }
};

// Header beats, start, and factor, bound and the key's three words.
template <>
void set(Vternary_encoder& model, const Registers& registers) {
    model.head = registers.words[0] & 15;
    model.start = registers.words[1];
    for (size_t word = 0; word < 5; ++word) model.settings[word] = registers.words[2 + word];
}

// Header beats, scaler, the frame's fp32 values.
template <>
void set(Vternary_decoder& model, const Registers& registers) {
    model.head = registers.words[0] & 15;
    model.scale = registers.words[1];
    model.values = registers.words[2] & 0xffff;
}

// Header beats, elements, workers of both bodies, whether each is a ternary.
template <>
void set(Vternary_adder& model, const Registers& registers) {
    model.head = registers.words[0] & 15;
    model.values = registers.words[1] & 0xffff;
    model.workers_1 = registers.words[2] & 127;
    model.workers_2 = registers.words[3] & 127;
    model.ternary_1 = registers.words[4] & 1;
    model.ternary_2 = registers.words[5] & 1;
}

}  // namespace

extern "C" {

// As paceline_engine_run of verilated.cpp. engine: 0 encoder, 1 decoder, 2 adder. Frames of an adder's second stream: size 0 where
// there is none; null for the other engines.
int64_t paceline_ternary_run(int engine, int64_t count, const uint8_t* frames, const uint64_t* sizes, const uint8_t* seconds,
                             const uint64_t* second_sizes, const Registers* registers, uint64_t seed, uint8_t* out, uint64_t room,
                             uint64_t* out_sizes, uint8_t* errors, uint64_t* times, uint64_t* totals) {
    Job job{count, {frames, seconds}, {sizes, second_sizes}, registers, seed, out, room, out_sizes, errors, times, totals};
    if (engine == 0) return run<Vternary_encoder>(job);
    if (engine == 1) return run<Vternary_decoder>(job);
    return run<Vternary_adder>(job);
}

}  // extern "C"
