// Experts on the host beside a card that is not there: the backend's host code as it is, kernels lane by lane, the CPU
// backend's experts. With any split of the layers nibble-tiny says the same.

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/experts/host_experts.h"
#include "backend/cuda/experts/route.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/mmap_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/testing/files.h"
#include "engine/loop.h"
#include "engine/step_builder.h"
#include "model/gpt_oss.h"
#include "model/hf_config.h"
#include "model/manifest.h"
#include "one_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>  // the emulated one

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace nibble {
namespace {

using backend::Activations;
using backend::HostExperts;
using backend::KernelFamily;
using backend::Slot;

const std::filesystem::path kTiny = std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";

struct Files {
  std::filesystem::path at = kTiny;
  model::ModelConfig config = model::read_hf_config(at).config;
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(at);
  std::vector<backend::HostWeight> weights = model::bind_weights(checkpoint.entries(), config);
};

const Files& files() {
  static const Files all;
  return all;
}

std::vector<int32_t> some_tokens(size_t count, int32_t first) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back((first + static_cast<int32_t>(i) * 37) % 4000);
  return ids;
}

class HostLayers : public testing::Test {
 protected:
  void SetUp() override { backend::cuda::emulated_cuda() = backend::cuda::emulated_small_card(); }
  void TearDown() override { backend::cuda::emulated_cuda() = {}; }

  // copies: of steps of at least so many tokens; 0: of none.
  static backend::RunConfig run_of(KernelFamily family, int layers, int copies = 0) {
    return {.backend = backend::BackendKind::kCuda,
            .threads = 2,
            .attention = backend::AttentionKernel::kReference,
            .family = family,
            .eager = true,  // a replayed graph does nothing there
            .cpu_moe_layers = layers,
            .expert_copy_tokens = copies};
  }
  static backend::MakeHostExperts on_cpu(const backend::WatchedHost& watched = {}) {
    return [watched](const backend::BackendConfig& config) {
      return backend::make_cpu_experts(config, {.threads = 2, .activations = Activations::kF32}, watched);
    };
  }
  struct Loaded {
    Loaded(const backend::RunConfig& run, const model::StepLimits& limits, backend::MakeHostExperts experts = on_cpu())
        : be(make(run, limits, std::move(experts))), gpt(model::load(*be, files().config, files().weights)) {}
    static std::unique_ptr<backend::Backend> make(const backend::RunConfig& run, const model::StepLimits& limits,
                                                  backend::MakeHostExperts experts) {
      backend::cuda::emulated_cuda().allocated = 0;
      return backend::make_cuda_backend(model::backend_config(files().config, limits), run,
                                        {.tuned = kTuned, .host_experts = std::move(experts)});
    }
    std::unique_ptr<backend::Backend> be;
    model::GptOss gpt;
  };

  // A prompt in chunks, then one token after the other.
  static std::vector<int32_t> text(backend::Backend& be, const model::GptOss& gpt) {
    engine::Loop loop(be, gpt, test::engine_limits(kText));
    return test::generate(loop, {.prompt = some_tokens(11, 5), .max_tokens = 4, .sampling = {.temperature = 0}}).tokens;
  }
  static std::vector<int32_t> text(KernelFamily family, int layers, int copies = 0) {
    const Loaded loaded(run_of(family, layers, copies), test::step_limits(kText));
    return text(*loaded.be, loaded.gpt);
  }
  static std::vector<int32_t> text_of_cpu(const backend::WatchedHost& watched = {}) {
    const auto be = backend::make_cpu_backend(model::backend_config(files().config, test::step_limits(kText)),
                                              {.threads = 2, .activations = Activations::kF32}, watched);
    return text(*be, model::load(*be, files().config, files().weights));
  }
  static int64_t launches(const backend::Backend& be, std::string_view kernel) {
    int64_t count = 0;
    for (const backend::KernelLaunches& launched : be.launches())
      if (launched.kernel == kernel) count += launched.count;
    return count;
  }
  static std::vector<float> logits(KernelFamily family, int layers, size_t tokens, int copies = 0) {
    const Loaded loaded(run_of(family, layers, copies), {.max_tokens = 64, .max_rows = 1, .kv_pages = {4, 4}});
    model::Step step = engine::step_alone(some_tokens(tokens, 9));
    step.logit_tokens = {static_cast<int32_t>(tokens) - 1};
    model::forward(*loaded.be, loaded.gpt, step);
    if (family == KernelFamily::kGemm) {
      const bool sums = launches(*loaded.be, backend::cuda::RouteSums::kName.name) > 0;
      EXPECT_EQ(sums, static_cast<int64_t>(tokens) > kTuned.route_tokens);
      const int parts = backend::cuda::expert_parts(files().config.dims).count;
      EXPECT_EQ(launches(*loaded.be, "copy_experts"), copies > 0 ? layers * parts : 0);
      EXPECT_EQ(launches(*loaded.be, "any_host_turn"), copies > 0 ? 0 : layers);
    }
    return loaded.be->peek(Slot::kLogits).values;
  }

  static constexpr backend::cuda::Tuned kTuned{.grouped_pairs = 1, .route_tokens = 9};
  static constexpr test::OneSequence kText{.max_context = 256, .chunk_tokens = 9};
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(double{a[i]} - b[i]));
    size = std::max(size, std::abs(double{b[i]}));
  }
  return most / size;
}

TEST_F(HostLayers, leave_the_text_as_it_is) {
  const std::vector<int32_t> of_cpu = text_of_cpu();
  ASSERT_EQ(of_cpu.size(), 4U);
  for (const int layers : {0, 1, 4, 8}) EXPECT_EQ(text(KernelFamily::kReference, layers), of_cpu) << layers;
  for (const int layers : {0, 4}) EXPECT_EQ(text(KernelFamily::kStreaming, layers), of_cpu) << "packed, " << layers;
}

// Two parts of a delta, one, and more tokens than decode kernels take: in rows that a router normed, and from the
// residual where the router has left that.
TEST_F(HostLayers, give_the_card_s_logits) {
  for (const auto& [family, tokens, bound] : {std::tuple{KernelFamily::kReference, 5, 1e-4},
                                              {KernelFamily::kStreaming, 1, 5e-2},
                                              {KernelFamily::kStreaming, 9, 5e-2},
                                              {KernelFamily::kGemm, 9, 5e-2},
                                              {KernelFamily::kGemm, 10, 5e-2}}) {
    const std::vector<float> alone = logits(family, 0, static_cast<size_t>(tokens));
    for (const int layers : {5, 8})
      EXPECT_LE(distance(logits(family, layers, static_cast<size_t>(tokens)), alone), bound)
          << backend::name_of(family) << ", " << tokens << " tokens, " << layers << " layers";
  }
}

// Parts of a layer's experts one after the other give the bits of all at once.
TEST_F(HostLayers, are_copied_to_the_card_for_many_tokens) {
  EXPECT_EQ(backend::cuda::expert_parts(files().config.dims).count, 2);
  const std::vector<float> alone = logits(KernelFamily::kGemm, 0, 20);
  EXPECT_EQ(logits(KernelFamily::kGemm, 5, 20, 20), alone);
  EXPECT_EQ(text(KernelFamily::kGemm, 4, 9), text(KernelFamily::kGemm, 4));
}

TEST_F(HostLayers, whose_scales_no_packing_holds_are_found_when_they_are_copied) {
  std::vector<backend::HostWeight> weights = files().weights;
  const auto own =
      std::ranges::find_if(weights, [](const auto& w) { return w.role == backend::WeightRole::kDown && w.layer == 1; });
  std::vector<std::byte> scales(own->scales.bytes.begin(), own->scales.bytes.end());
  scales.back() = std::byte{255};
  own->scales.bytes = scales;
  const auto be = Loaded::make(run_of(KernelFamily::kGemm, 2, 9), test::step_limits(kText), on_cpu());
  const model::GptOss gpt = model::load(*be, files().config, weights);
  model::Step step = engine::step_alone(some_tokens(9, 1));
  step.logit_tokens = {8};
  const backend::SamplingParams greedy{.temperature = 0};
  step.sample_rows = {{.params = &greedy}};
  const auto ticket = model::forward(*be, gpt, step);
  ASSERT_TRUE(ticket);
  test::expect_error([&] { static_cast<void>(be->wait(*ticket)); }, Code::kUnsupported,
                     "cuda: 1 blocks of 32 weights have a scale above 2^64 or are not finite");
}

// Several sequences in a step.
TEST_F(HostLayers, serve_sequences_together) {
  const auto texts = [](int layers) {
    const engine::EngineLimits limits{.max_context = 128,
                                      .max_sequences = 3,
                                      .max_batched_tokens = 16,
                                      .target_itl_seconds = std::numeric_limits<double>::infinity()};
    const Loaded loaded(run_of(KernelFamily::kReference, layers), engine::step_limits(limits, files().config.dims));
    engine::Loop loop(*loaded.be, loaded.gpt, limits);
    std::map<int64_t, std::vector<int32_t>> all;
    for (const int32_t first : {3, 7, 11})
      loop.add(
          first,
          {.prompt = some_tokens(static_cast<size_t>(first), first), .max_tokens = 4, .sampling = {.temperature = 0}},
          [&all, first](const engine::Event& event) {
            if (const auto* token = std::get_if<engine::TokenEvent>(&event)) all[first].push_back(token->token);
          });
    while (!loop.idle()) loop.step();
    return all;
  };
  const auto alone = texts(0);
  ASSERT_EQ(alone.size(), 3U);
  EXPECT_EQ(texts(4), alone);
}

// A second of work for each layer; what else they have is what `accounts` says.
backend::WatchedHost watched_by(std::vector<std::string>& said, std::function<ProcessAccounts()> accounts) {
  return {.say = [&said](const std::string& line) { said.push_back(line); },
          .read_bytes_per_s = 1e9,
          .flops_per_s = 1e15,
          .weight_bytes = 1 << 29,
          .threads = 2,
          .seconds = [now = 0.0]() mutable { return now += 1; },
          .accounts = std::move(accounts)};
}

TEST_F(HostLayers, whose_threads_others_keep_from_running_say_so_and_give_the_same_text) {
  const std::vector<int32_t> alone = text_of_cpu();
  for (const bool beside_a_card : {true, false}) {
    std::vector<std::string> said;
    const backend::WatchedHost watched = watched_by(said, [waited = 0.0]() mutable {
      return ProcessAccounts{.waited_seconds = waited += 3, .processors = 2, .runnable = 5};
    });
    if (beside_a_card) {
      const Loaded loaded(run_of(KernelFamily::kReference, 4), test::step_limits(kText), on_cpu(watched));
      EXPECT_EQ(text(*loaded.be, loaded.gpt), alone);
    } else {
      EXPECT_EQ(text_of_cpu(watched), alone);
    }
    ASSERT_EQ(said.size(), 1U);
    EXPECT_THAT(said[0],
                testing::MatchesRegex("experts on the host are slow: 0\\.0 GB/s of 1\\.0; other programs take the "
                                      "processors \\(threads waited 3\\.0 s for one in 2\\.0 s of work; 5 tasks "
                                      "want 2 processors\\)"));
  }
}

// The kernel's own accounts: the file is dropped from memory again and again, and comes back page after page.
TEST_F(HostLayers, whose_weights_come_from_the_disk_say_so_and_give_the_same_text) {
  const test::ScratchDir scratch;
  for (const auto& each : std::filesystem::directory_iterator(kTiny))
    if (each.is_regular_file()) std::filesystem::copy_file(each.path(), scratch / each.path().filename().string());
  ::sync();  // what is not on the disk is not dropped
  const Files own{.at = scratch.path()};
  const auto forget = [&own] {
    bool gone = true;
    for (const checkpoint::SafetensorsFile& file : own.checkpoint.files()) {
      DirectFile(file.path()).forget(file.bytes());
      for (const int single : {MADV_NOHUGEPAGE, MADV_RANDOM})  // no page before its use
        madvise(const_cast<std::byte*>(file.bytes().data()), file.bytes().size(), single);
      gone &= !is_resident(file.bytes());
    }
    return gone;
  };
  if (!forget()) GTEST_SKIP() << scratch.path() << " is on a file system in memory";
  std::vector<std::string> said;
  const auto be =
      Loaded::make(run_of(KernelFamily::kReference, 8), test::step_limits(kText), on_cpu(watched_by(said, [&forget] {
                     static_cast<void>(forget());
                     return process_accounts();
                   })));
  EXPECT_EQ(text(*be, model::load(*be, own.config, own.weights)), text_of_cpu());
  ASSERT_GE(said.size(), 1U);
  EXPECT_THAT(said[0], testing::MatchesRegex("experts on the host are slow: 0\\.0 GB/s of 1\\.0; weights are read "
                                             "from the disk \\([0-9]+ major page faults, 0\\.0 GB\\): memory has "
                                             "room for them, so this will end.*"));
}

class FailingExperts final : public HostExperts {
 public:
  explicit FailingExperts(int at) : at_(at) {}
  [[nodiscard]] std::string modes() const override { return "none"; }
  void upload(const backend::HostWeight& /*weight*/) override {}
  void run(const Work& work) override {
    if (work.layer == at_) throw Error(Code::kIo, "the weights are gone");
  }

 private:
  int at_;
};

TEST_F(HostLayers, that_fail_end_the_step_with_their_error) {
  const Loaded loaded(run_of(KernelFamily::kReference, 3), test::step_limits(kText),
                      [](const backend::BackendConfig&) { return std::make_unique<FailingExperts>(2); });
  model::Step step = engine::step_alone(some_tokens(3, 1));
  step.logit_tokens = {2};
  const backend::SamplingParams greedy{.temperature = 0};
  step.sample_rows = {{.params = &greedy}};
  const auto ticket = model::forward(*loaded.be, loaded.gpt, step);
  ASSERT_TRUE(ticket);
  test::expect_error([&] { static_cast<void>(loaded.be->wait(*ticket)); }, Code::kIo, "the weights are gone");
}

}  // namespace
}  // namespace nibble
