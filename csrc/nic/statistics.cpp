#include "statistics.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>

namespace paceline::nic {

Statistics* map_statistics(const std::string& path) {
    if (path.empty()) return new Statistics;
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0 || ftruncate(file, sizeof(Statistics)) < 0) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
    void* const memory = mmap(nullptr, sizeof(Statistics), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot map " + path + ": " + std::strerror(errno));
    close(file);
    auto* const statistics = new (memory) Statistics;
    statistics->process.set(uint64_t(getpid()));
    return statistics;
}

}  // namespace paceline::nic
