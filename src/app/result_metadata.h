#pragma once
// What a result says of where it comes from: docs/result-schema.json. A result without it cannot be compared.

#include "app/loaded_model.h"
#include "app/options.h"
#include "backend/measure.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::app {

using Metadata = nlohmann::ordered_json;

// What a command knows beside the program and the machine.
struct ResultOrigin {
  std::string command;  // as it was typed
  const Settings& settings;
  const Variables& environment;  // variables that matter (options.h)
  Metadata workload;
  std::string warm_up;
  double startup_seconds = 0;  // until the first request could run; 0: somebody else's start
};

// The date is now, and memory's peak is the one so far.
[[nodiscard]] Metadata metadata_of(const ResultOrigin& origin);

// Most memory that this process has held so far.
[[nodiscard]] int64_t peak_host_bytes();
// From now on that is the most since now, where the system can do so.
void restart_peak();

// A run in this process.
struct ProcessRun {
  const ModelSource& source;
  const ModelOptions& model;  // resolved
  const backend::DevicePeaks& peaks;
};
// Adds its device, as it is now, its model, and the device's memory in use.
void add_process(Metadata& metadata, const ProcessRun& run);

// What a result's metadata does not say though it must, by its place ("device.driver"); empty: it says all. Of a
// server's result that is what its client can know. Null counts as unsaid where somebody must have known.
[[nodiscard]] std::vector<std::string> metadata_gaps(const Metadata& metadata);
// At "device.name", in dots; null where there is nothing.
[[nodiscard]] Metadata value_at(const Metadata& json, std::string_view path);
// ("device.name", "Xeon") for every value, in order.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> flat_metadata(const Metadata& metadata);
[[nodiscard]] std::string text_of(const Metadata& value);  // a string as it is, the rest as JSON

struct HashedFile {
  std::string name;
  std::span<const std::byte> bytes;
};
// SHA-256, in hexadecimal, over each file's name, size and content; of more than 64 MiB its first and last 32.
[[nodiscard]] std::string hash_of(std::span<const HashedFile> files);

// "2026-11-25T13:20:01Z"
[[nodiscard]] std::string utc_text(std::chrono::system_clock::time_point at);

}  // namespace nibble::app
