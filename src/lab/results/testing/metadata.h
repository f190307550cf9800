#pragma once
// Metadata of a result that says all it must, for tests.

#include "lab/results/metadata.h"

#include <string>

namespace nibble::app {

inline Metadata whole_metadata(const std::string& device = "Xeon") {
  Metadata metadata = Metadata::parse(R"({
    "date": "2026-11-25T13:20:01Z", "command": "nibble bench",
    "build": {"version": "0.1.0", "commit": "abc", "type": "Release", "cuda": null},
    "host": {"cpu": "Xeon", "processors": 2, "cpu_governor": "unknown", "cpu_mhz": 2600},
    "device": {"name": "", "backend": "cpu", "kernels": "avx2, 2 threads", "driver": null, "clock_mhz": null,
               "power_limit_watts": null},
    "model": {"name": "tiny", "sha256": "00", "dummy_seed": null},
    "settings": {"threads": {"value": "0", "origin": "default", "resolved": "2"},
                 "level": {"value": "5", "origin": "command line"}},
    "environment": {}, "workload": {}, "warm_up": "each row once", "startup_seconds": 0.1,
    "peak_memory_bytes": {"host": 100000000, "device": null}})");
  metadata["device"]["name"] = device;
  return metadata;
}

}  // namespace nibble::app
