// _nic_card: the network card of one host of a lab, with INCEPTIONN's engine (Li et al., MICRO 2018, section VI).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "measure.h"
#include "pipe.h"
#include "wires.h"

namespace {

using namespace paceline::nic;

constexpr const char* kUsage =
    "_nic_card --tap NAME --wire NAME [--codec inceptionn|inceptionn-scaled] [--k K] [--mtu BYTES] [--rate BYTES_PER_S]\n"
    "          [--engine LIBRARY] [--statistics FILE] [--send-buffer BYTES]\n"
    "_nic_card --pipe [--merge] [--codec ...] [--k K] [--mtu BYTES] [--engine LIBRARY] [--statistics FILE]\n"
    "_nic_card --measure SECONDS [--codec ...] [--k K] [--mtu BYTES] [--engine LIBRARY]\n"
    "Started by `paceline lab up --nic`. Frames of the TAP interface leave by the wire with the fp32 values of marked gloo flows\n"
    "compressed; frames of the wire come back restored.\n";

struct Options {
    Wires wires;
    std::string codec = "inceptionn", engine, statistics;
    int k = 0;
    double measured = 0;  // seconds
    bool pipe = false, merge = false;
};

double number(const std::string& name, const char* text, double least, double most) {
    char* end;
    const double value = std::strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most)) throw std::runtime_error(name + " " + text + " is no number that can be");
    return value;
}

Options read_options(int count, char** words) {
    Options o;
    for (int i = 1; i < count; i++) {
        const std::string name = words[i];
        if (name == "--pipe" || name == "--merge") {
            (name == "--pipe" ? o.pipe : o.merge) = true;
            continue;
        }
        if (i + 1 == count) throw std::runtime_error(name + " lacks its value");
        const char* const value = words[++i];
        if (name == "--tap") o.wires.tap = value;
        else if (name == "--wire") o.wires.wire = value;
        else if (name == "--codec") o.codec = value;
        else if (name == "--engine") o.engine = value;
        else if (name == "--statistics") o.statistics = value;
        else if (name == "--k") o.k = int(number(name, value, 1, 15));
        else if (name == "--mtu") o.wires.mtu = size_t(number(name, value, 576, 65535));
        else if (name == "--rate") o.wires.bytes_per_s = number(name, value, 1, 1e15);
        else if (name == "--measure") o.measured = number(name, value, 0.01, 3600);
        else if (name == "--send-buffer") o.wires.send_buffer = size_t(number(name, value, 4096, 1 << 30));
        else throw std::runtime_error("no option " + name);
    }
    if (o.codec != "inceptionn" && o.codec != "inceptionn-scaled") throw std::runtime_error("no codec " + o.codec);
    if (!o.pipe && o.measured == 0 && (o.wires.tap.empty() || o.wires.wire.empty())) throw std::runtime_error("--tap and --wire are missing");
    if (!o.k) o.k = o.codec == "inceptionn" ? 10 : 6;
    if (o.codec == "inceptionn-scaled" && o.k > 14) throw std::runtime_error("--k of inceptionn-scaled is at most 14");
    return o;
}

}  // namespace

int main(int count, char** words) {
    if (count < 2 || !std::strcmp(words[1], "--help")) return std::fputs(kUsage, stdout), count < 2 ? 2 : 0;
    try {
        const Options o = read_options(count, words);
        const Codec codec(o.codec == "inceptionn" ? kFaithful : kScaled, o.k, o.engine);
        Statistics* const statistics = map_statistics(o.statistics);
        if (o.measured > 0) return measure(codec, o.wires.mtu, o.measured);
        if (o.pipe) return run_pipe(codec, o.wires.mtu, o.merge, statistics);
        run(o.wires, codec, statistics);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "_nic_card: %s\n", error.what());
        return 2;
    }
}
