// The decode kernels on a GPU against a plain double reference at real shapes. A program of its own: prints PASS or
// FAIL per case, then "N passed, M failed"; exit status 1 when one failed. Label gpu.

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/testing/gemv.h"
#include "backend/cuda/experts/experts.h"

#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;
using layout::RowOrder;

void test_pack(int64_t rows, int64_t cols, RowOrder order) {
  std::vector<HostMatrix> both;
  for (const uint64_t seed : {70, 71})
    both.emplace_back(Packing::kMxfp4, rows, cols, order, seed, Scales{0, layout::kMaxScaleCode});
  std::vector<uint8_t> want;
  for (const HostMatrix& m : both) {
    std::vector<uint8_t> packed(static_cast<size_t>(layout::packed_bytes(rows, cols)));
    layout::pack({rows, cols, order, m.values, m.scales}, packed);
    want.insert(want.end(), packed.begin(), packed.end());
  }
  const PackedMatrices device(both);
  const bool same = device.get() == want && device.bad() == 0;
  both[0].scales[7] = 241;
  report(same && PackedMatrices(both).bad() == 1, at("device pack ", rows, " x ", cols),
         same ? "equals the host's, counts a bad scale" : "differs");
}

struct DenseCase {
  const char* name;
  Packing packing;
  int64_t rows, cols;
  Scales scales = {};
  bool with_bias = true;  // a bias would hide results near zero
};

void test_dense(const DenseCase& test, const PlanDevice& device) {
  const std::vector<HostMatrix> w{HostMatrix(test.packing, test.rows, test.cols, RowOrder::kPlain, 11, test.scales)};
  const std::vector<float> x = random_floats(kGemvTokens * test.cols, 12);
  const std::vector<Bf16> bias = random_bf16(test.rows, 13);
  std::vector<Sum> sums(static_cast<size_t>(kGemvTokens * test.rows));
  parallel(test.rows, [&](int64_t r) {
    const std::vector<double> row = w[0].row(r);
    for (int t = 0; t < kGemvTokens; ++t)
      sums[static_cast<size_t>(t * test.rows + r)] = dot(row, x.data() + t * test.cols);
  });
  const PackedMatrices d_w(w);
  const Device<float> d_x(x);
  const Device<Bf16> d_bias(bias);
  for (int tokens = 1; tokens <= kGemvTokens; ++tokens)
    for (const int stages : {0, 2}) {
      const auto count = static_cast<size_t>(tokens * test.rows);
      Device<float> y(count);
      const GemvDense::Args args{.packing = test.packing,
                                 .weights = d_w.data(),
                                 .bias = test.with_bias ? d_bias.data() : nullptr,
                                 .in = {.x = d_x.data()},
                                 .y = y.data(),
                                 .rows = static_cast<int>(test.rows),
                                 .cols = static_cast<int>(test.cols),
                                 .tokens = tokens};
      const auto run = [&](bool chained) {
        GemvDense::launch(args, plan_gemv(GemvDense::shape_of(args), device, stages), {.chained = chained});
        cuda_check(cudaDeviceSynchronize(), "dense");
        return y.get();
      };
      const std::vector<float> got = run(false), again = run(true);
      Comparison c;
      for (size_t i = 0; i < count; ++i) {
        const size_t r = i % static_cast<size_t>(test.rows);
        const double add = test.with_bias ? bias[r].to_float() : 0.0;
        c.add(at("token ", static_cast<int64_t>(i) / test.rows, " row ", static_cast<int64_t>(r)), got[i],
              sums[i].value + add, kSumError * (sums[i].size + std::abs(add)) + kTiny);
      }
      c.finish(std::string("dense ") + test.name + at(" tokens ", tokens, " stages ", stages),
               std::memcmp(got.data(), again.data(), got.size() * 4) == 0);
    }
}

// 64 products of the one before's norm: each kernel must wait for its predecessor's end before it reads.
void test_chain(const PlanDevice& device) {
  const PackedMatrices d_w({HostMatrix(Packing::kMxfp4, 2880, 2880, RowOrder::kPlain, 31)});
  const Device<Bf16> norm(random_bf16(2880, 33));
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreate(&stream), "stream");
  const auto last = [&](bool chained) {
    Device<float> x[2] = {Device<float>(2880), Device<float>(2880)};
    x[0].set(random_floats(2880, 32));
    constexpr int kLinks = 64;
    for (int i = 0; i < kLinks; ++i)
      GemvDense::launch({.weights = d_w.data(),
                         .in = {.x = x[i % 2].data(), .norm = norm.data(), .eps = 1e-5f},
                         .y = x[(i + 1) % 2].data(),
                         .rows = 2880,
                         .cols = 2880,
                         .tokens = 1},
                        plan_gemv({2880, 2880}, device), {.stream = stream, .chained = chained});
    cuda_check(cudaStreamSynchronize(stream), "chain");
    return x[kLinks % 2].get();
  };
  const std::vector<float> alone = last(false), chained = last(true);
  bool finite = true;
  for (const float v : alone) finite = finite && std::isfinite(v);
  report(finite && std::memcmp(alone.data(), chained.data(), alone.size() * 4) == 0, "chain",
         "64 chained products have the bits of 64 apart");
  cudaStreamDestroy(stream);
}

struct Routes {
  std::string name;
  int tokens;
  std::vector<int32_t> ids;
};

constexpr int kTopk = 4, kExperts = 8, kHidden = 2880, kInter = 2880;

std::vector<Routes> route_cases() {
  std::vector<Routes> cases;
  for (int tokens = 1; tokens <= kGemvTokens; ++tokens) {
    Routes random{at("random, tokens ", tokens, "", 0), tokens, {}},
        same{at("all on the same four, tokens ", tokens, "", 0), tokens, {}};
    for (int t = 0; t < tokens; ++t) {
      std::vector<int32_t> order(kExperts);
      for (int e = 0; e < kExperts; ++e) order[static_cast<size_t>(e)] = e;
      for (int e = kExperts - 1; e > 0; --e)
        std::swap(order[static_cast<size_t>(e)],
                  order[draw(50 + static_cast<uint64_t>(t), static_cast<uint64_t>(e)) % static_cast<uint32_t>(e + 1)]);
      random.ids.insert(random.ids.end(), order.begin(), order.begin() + kTopk);
      for (int k = 0; k < kTopk; ++k) same.ids.push_back(2 + (k + t) % kTopk);
    }
    cases.push_back(random);
    if (tokens > 1) cases.push_back(same);
  }
  cases.push_back({"two tokens, all experts distinct", 2, {7, 0, 3, 5, 1, 6, 2, 4}});
  return cases;
}

// Reference sums of every (expert, row) with every token's input: input(e, t) is the row of activations.
template <class Input>
std::vector<Sum> all_sums(const std::vector<HostMatrix>& experts, const Input& input) {
  const int64_t rows = experts[0].rows;
  std::vector<Sum> sums(experts.size() * static_cast<size_t>(rows) * kGemvTokens);
  parallel(rows * static_cast<int64_t>(experts.size()), [&](int64_t n) {
    const std::vector<double> row = experts[static_cast<size_t>(n / rows)].row(n % rows);
    for (int t = 0; t < kGemvTokens; ++t) sums[static_cast<size_t>(n * kGemvTokens + t)] = dot(row, input(n / rows, t));
  });
  return sums;
}

std::vector<HostMatrix> experts(int64_t rows, int64_t cols, RowOrder order, uint64_t seed) {
  std::vector<HostMatrix> all;
  for (int e = 0; e < kExperts; ++e)
    all.emplace_back(Packing::kMxfp4, rows, cols, order, seed + 10 * static_cast<uint64_t>(e));
  return all;
}

// Logits whose choice is the routes' ids, in their order, and the weights of that choice.
struct Logits {
  std::vector<float> logits, weights;
  explicit Logits(const Routes& routes) : logits(static_cast<size_t>(routes.tokens * kExperts), -5) {
    for (int t = 0; t < routes.tokens; ++t) {
      double sum = 0;
      for (int k = 0; k < kTopk; ++k) sum += std::exp(-0.5 * k);
      for (int k = 0; k < kTopk; ++k) {
        logits[static_cast<size_t>(t * kExperts + routes.ids[static_cast<size_t>(t * kTopk + k)])] =
            1 - 0.5f * static_cast<float>(k);
        weights.push_back(static_cast<float>(std::exp(-0.5 * k) / sum));
      }
    }
  }
};

void test_up(const std::vector<Routes>& cases, const PlanDevice& device) {
  const std::vector<HostMatrix> host = experts(2 * kInter, kHidden, RowOrder::kGateUp, 200);
  const std::vector<F16> x = random_f16(kGemvTokens * kHidden, 21);
  const std::vector<Bf16> bias = random_bf16(kExperts * 2 * kInter, 22);
  const std::vector<Sum> sums = all_sums(host, [&](int64_t, int t) { return x.data() + t * kHidden; });
  const PackedMatrices w(host);
  const Device<F16> d_x(x);
  const Device<Bf16> d_bias(bias);
  for (const Routes& routes : cases) {
    const Device<float> logits(Logits(routes).logits);
    const Device<int32_t> ids(routes.ids.size());
    const Device<F16> u(routes.ids.size() * kInter);
    const MoeUp::Args args{.weights = w.data(),
                           .bias = d_bias.data(),
                           .x = d_x.data(),
                           .choice = {logits.data(), ids.data(), nullptr, kExperts, kTopk},
                           .u = u.data(),
                           .hidden = kHidden,
                           .inter = kInter,
                           .tokens = routes.tokens};
    const auto run = [&](bool chained) {
      MoeUp::launch(args, plan_row_warps(kHidden, MoeUp::kWish, device), {.chained = chained});
      cuda_check(cudaDeviceSynchronize(), "moe_up");
      return u.get();
    };
    const std::vector<F16> got = run(false), again = run(true);
    report(ids.get() == routes.ids, "choice " + routes.name, "experts by falling logit");
    Comparison c;
    for (size_t pair = 0; pair < routes.ids.size(); ++pair)
      for (int ch = 0; ch < kInter; ++ch) {
        const size_t row = static_cast<size_t>(routes.ids[pair]) * 2 * kInter + 2 * static_cast<size_t>(ch);
        const Sum& g = sums[row * kGemvTokens + pair / kTopk];
        const Sum& l = sums[(row + 1) * kGemvTokens + pair / kTopk];
        const double gate = std::min(g.value + bias[row].to_float(), 7.0);
        const double up = std::clamp(l.value + bias[row + 1].to_float(), -7.0, 7.0);
        const double want = gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
        c.add(at("pair ", static_cast<int64_t>(pair), " channel ", ch),
              got[pair * kInter + static_cast<size_t>(ch)].to_float(), want,
              1.01 * 0x1p-11 * std::abs(want) + 0x1p-24 + kSumError * (10 * g.size + 8 * l.size));
      }
    c.finish("moe_up " + routes.name, std::memcmp(got.data(), again.data(), got.size() * 2) == 0);
  }
}

struct Down {
  int inter;
  std::vector<HostMatrix> host = experts(kHidden, inter, RowOrder::kPlain, 400);
  std::vector<F16> u = random_f16(kGemvRoutes * inter, 23);
  std::vector<Bf16> bias = random_bf16(kExperts * kHidden, 24);
  PackedMatrices d_weights{host};
  Device<Bf16> d_bias{bias};
};

// parts 0: moe_down; else gemv_moe_down, whose parts are added here.
void test_down_case(const Routes& routes, int parts, const PlanDevice& device, const Down& down) {
  const auto& bias = down.bias;
  const std::vector<F16> u_used(down.u.begin(), down.u.begin() + static_cast<int64_t>(routes.ids.size()) * down.inter);
  const Device<F16> u(u_used);
  const Logits chosen(routes);
  const std::vector<float>& weights = chosen.weights;
  const Device<float> logits(chosen.logits);
  const auto count = static_cast<size_t>(routes.tokens * kHidden);
  Device<float> y(count), second(count), sums(routes.ids.size() * kHidden);
  const Device<int> finished(std::vector<int>(static_cast<size_t>(kHidden / layout::kTileRows), 0));
  const ExpertChoice choice{logits.data(), nullptr, nullptr, kExperts, kTopk};
  const auto run = [&](bool chained) {
    y.set(std::vector<float>(count, NAN));
    second.set(std::vector<float>(count, parts == 2 ? NAN : 0.0f));
    if (parts == 0) {
      MoeDown::launch({.weights = down.d_weights.data(),
                       .bias = down.d_bias.data(),
                       .u = u.data(),
                       .choice = choice,
                       .y = y.data(),
                       .sums = sums.data(),
                       .finished = finished.data(),
                       .hidden = kHidden,
                       .inter = down.inter,
                       .tokens = routes.tokens},
                      plan_row_warps(down.inter, MoeDown::kWish, device), {.chained = chained});
    } else {
      const GemvMoeDown::Args args{.weights = down.d_weights.data(),
                                   .bias = down.d_bias.data(),
                                   .u = u.data(),
                                   .choice = choice,
                                   .y = {y.data(), second.data()},
                                   .hidden = kHidden,
                                   .inter = down.inter,
                                   .tokens = routes.tokens,
                                   .parts = parts};
      GemvMoeDown::launch(args, plan_gemv(GemvMoeDown::shape_of(args), device), {.chained = chained});
    }
    cuda_check(cudaDeviceSynchronize(), "moe_down");
    std::vector<float> all = y.get();
    const std::vector<float> rest = second.get();
    for (size_t i = 0; i < count; ++i) all[i] += rest[i];
    return all;
  };
  const std::vector<float> got = run(false), again = run(true);
  std::vector<Sum> want(static_cast<size_t>(routes.tokens * kHidden));
  parallel(kHidden, [&](int64_t r) {
    for (size_t pair = 0; pair < routes.ids.size(); ++pair) {
      const auto e = static_cast<size_t>(routes.ids[pair]);
      const Sum s = dot(down.host[e].row(r), u_used.data() + static_cast<int64_t>(pair) * down.inter);
      Sum& to = want[pair / kTopk * kHidden + static_cast<size_t>(r)];
      to.value += double{weights[pair]} * (s.value + bias[e * kHidden + static_cast<size_t>(r)].to_float());
      to.size += double{weights[pair]} * (s.size + 1);
    }
  });
  Comparison c;
  for (size_t i = 0; i < want.size(); ++i) {
    c.add(at("token ", static_cast<int64_t>(i / kHidden), " row ", static_cast<int64_t>(i % kHidden)), got[i],
          want[i].value, kSumError * (want[i].size + 1));
  }
  c.finish((parts == 0 ? "moe_down " : "gemv moe_down ") + routes.name + at(", parts ", parts, ", inter ", down.inter),
           std::memcmp(got.data(), again.data(), got.size() * 4) == 0);
}

void test_down(const std::vector<Routes>& cases, const PlanDevice& device, int inter = kInter) {
  const Down down{inter};
  for (const Routes& routes : cases)
    for (const int parts : {0, 1, 2})
      if (parts == 0 || routes.ids.size() <= kGemvTokens) test_down_case(routes, parts, device, down);
}

int verdict() {
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

// For sanitizers: every packing and slice width, experts of one and of three tokens, little work.
int run_small() {
  const PlanDevice device = device_facts();
  test_pack(128, 192, RowOrder::kHeads64);
  for (const Packing packing : {Packing::kBf16, Packing::kMxfp8, Packing::kMxfp4, Packing::kQ8}) {
    test_dense({"192 columns", packing, 512, 192}, device);
    test_dense({"512 columns", packing, 256, 512}, device);
  }
  const std::vector<Routes> all = route_cases(), few = {all[0], all[3]};
  test_up(few, device);
  test_down(few, device);
  test_down(few, device, 704);
  return verdict();
}

int run_all() {
  const PlanDevice device = device_facts();
  std::printf("%s\n", plan_gemv({5120, 2880}, device).tile.c_str());
  test_pack(2880, 2880, RowOrder::kPlain);
  test_pack(5760, 2880, RowOrder::kGateUp);
  test_pack(2880, 4096, RowOrder::kPlain);
  test_pack(2880, 1472, RowOrder::kPlain);
  for (const Packing packing : {Packing::kBf16, Packing::kMxfp8, Packing::kMxfp4, Packing::kQ8}) {
    test_dense({"qkv", packing, 5120, 2880}, device);
    test_dense({"o", packing, 2880, 4096}, device);
    test_dense({"192 columns", packing, 512, 192}, device);
    test_dense({"512 columns", packing, 256, 512}, device);
  }
  const Packing mxfp4 = Packing::kMxfp4;
  test_dense({"scales 2^-40 to 2^20", mxfp4, 512, 2880, {87, 147}, false}, device);
  test_dense({"head in Q8_0", Packing::kQ8, 201088, 2880}, device);
  test_dense({"Q8_0, scales 2^-24 to 2^15", Packing::kQ8, 512, 2880, {103, 141}, false}, device);
  test_dense({"scales 2^-127 to 2^-124", mxfp4, 64, 2880, {0, 3}, false}, device);
  test_dense({"scales 2^23 to 2^64", mxfp4, 64, 2880, {150, layout::kMaxScaleCode}, false}, device);
  test_chain(device);
  test_up(route_cases(), device);
  test_down(route_cases(), device);
  for (const int inter : {1472, 704, 64})
    test_down(route_cases(), device, inter);  // of ranks: their first slice is short
  return verdict();
}

}  // namespace
}  // namespace nibble::backend::cuda

// gemv_test [small]
int main(int argc, char** argv) {
  try {
    const bool small = argc > 1 && std::string_view(argv[1]) == "small";
    return small ? nibble::backend::cuda::run_small() : nibble::backend::cuda::run_all();
  } catch (const std::exception& error) {
    std::printf("FAIL %s\n", error.what());
    return 1;
  }
}
