#pragma once
// What the tests of the CUDA backend behind the waist share. Skipped, with the reason, where there is no device.

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_checkpoint.h"
#include "model/hf_config.h"
#include "checkpoint/testing/files.h"
#include "gguf_copy.h"
#include "goldens.h"
#include "convert/gguf.h"
#include "model/gpt_oss.h"
#include "model/manifest.h"
#include "convert/synth.h"
#include "one_sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace nibble {

namespace fs = std::filesystem;
using Kv = backend::KvDtype;
using Attention = backend::AttentionKernel;
using backend::KernelFamily;

inline const fs::path kTiny = fs::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";

// A model's weights, from files or made up.
struct Source {
  explicit Source(const fs::path& directory)
      : config(model::read_hf_config(directory).config), files(checkpoint::Checkpoint::open(directory)) {
    weights = model::bind_weights(files->entries(), config);
  }
  Source(const model::ModelConfig& made_up, uint64_t seed) : config(made_up) {
    ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
    dummy.emplace(config, seed, &pool);
    weights = dummy->weights();
  }

  // `of` in llama.cpp's file, split, its dense matrices in Q8_0.
  Source(const Source& of, const test::ScratchDir& dir) : config(of.config) {
    gguf.emplace(test::as_gguf(config, of.weights, dir / "m.gguf", {.dense = DType::kGgmlQ8, .part_bytes = 4'000'000}));
    weights = model::bind_weights(gguf->tensors(), config);
  }

  model::ModelConfig config;
  std::optional<checkpoint::Checkpoint> files;
  std::optional<checkpoint::GgufCheckpoint> gguf;
  std::optional<convert::DummyWeights> dummy;
  std::vector<backend::HostWeight> weights;
};

// Where a run leaves some to the host: this machine's CPU, exactly.
inline backend::CudaSetup with_host_experts() {
  return {.host_experts = [](const backend::BackendConfig& of) {
    return backend::make_cpu_experts(of, {.threads = 4, .activations = backend::Activations::kF32});
  }};
}

enum class Which { kCuda, kReference, kCpu };

struct Loaded {
  Loaded(const Source& source, const test::OneSequence& limits_in, Which which,
         const backend::RunConfig& options = {.kv = Kv::kF32, .family = KernelFamily::kReference},
         const backend::DenseFormats& dense = {})
      : limits(limits_in) {
    const auto config = model::backend_config(source.config, test::step_limits(limits), dense);
    if (which == Which::kReference) {
      be = backend::make_reference_backend(config, options);
    } else if (which == Which::kCpu) {
      be = backend::make_cpu_backend(config, {.threads = 4, .kv = Kv::kF32, .activations = backend::Activations::kF32});
    } else {
      auto made = backend::make_cuda_backend(config, options, with_host_experts());
      cuda = made.get();
      be = std::move(made);
    }
    gpt = model::load(*be, source.config, source.weights);
  }
  // Scores in chunks; room for `tokens`.
  Loaded(const Source& source, size_t tokens, int chunk, Kv kv = Kv::kF32, Attention attention = Attention::kAuto)
      : Loaded(source, {.max_context = static_cast<int64_t>(tokens), .chunk_tokens = chunk, .max_logit_rows = chunk},
               Which::kCuda, {.kv = kv, .attention = attention, .family = KernelFamily::kReference}) {}

  test::OneSequence limits;
  std::unique_ptr<backend::Backend> be;
  backend::Backend* cuda = nullptr;
  model::GptOss gpt;
};

inline std::vector<float> all_logits(Loaded& loaded, std::span<const int32_t> tokens) {
  return test::all_logits(*loaded.be, loaded.gpt, tokens, loaded.limits.chunk_tokens);
}

// The median distance of the positions' logits: at a router's near-tie a position may fall to either side.
inline double median_distance(std::span<const float> got, std::span<const float> want, size_t vocab) {
  std::vector<double> far;
  for (size_t at = 0; at < want.size(); at += vocab)
    far.push_back(relative(got.subspan(at, vocab), want.subspan(at, vocab)));
  std::ranges::sort(far);
  return far[far.size() / 2];
}

inline std::vector<int32_t> some_tokens(size_t count, int64_t vocab) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<int32_t>((i * 7919 + i * i * 31 + 5) % static_cast<size_t>(vocab));
  return tokens;
}

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    const backend::CudaAvailable available = backend::cuda_available();
    if (!available.yes) GTEST_SKIP() << available.reason;
  }
};

}  // namespace nibble
