#include "backend/cuda/sampling/screen.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void make_screen_copy(const ScreenCopy& copy, cudaStream_t stream) {
  static_assert(kCopyWarps * 2 * layout::kScreenColumns * sizeof(float) <= 48 * 1024);
  screen_columns<<<static_cast<unsigned>(copy.cols / layout::kScreenColumns), kCopyThreads,
                   kCopyWarps * 2 * layout::kScreenColumns * sizeof(float), stream>>>(copy);
  screen_rows<<<static_cast<unsigned>(copy.rows / layout::kScreenRows), kCopyThreads,
                2 * kCopyWarps * layout::kScreenRows * sizeof(float), stream>>>(copy);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) throw_device_error("the screen's copy", cudaGetErrorString(status));
}

void Screen::launch(const Args& args, const Plan& plan, const Launch& on) {
  check_args(args);
  const int64_t operands = screen_operand_bytes(args.copy.cols, args.tokens);
  require_shape(plan.smem_bytes - operands >= static_cast<int64_t>(sizeof(ScreenShared)), kName,
                "shared memory for its sums", plan.smem_bytes);
  const auto launch = [&](auto kernel, int threads) {
    launch_chained(kernel, {kName, on, plan.grid, threads, plan.smem_bytes}, args);
  };
  args.tokens <= kSetTokens ? launch(any_screen<1>, kScreenThreads<1>) : launch(any_screen<2>, kScreenThreads<2>);
}

void ScreenPick::launch(const Args& args, const Launch& on) {
  check_args(args.of);
  // Two waves of CTAs would do; one is enough for 200,000 rows.
  launch_chained(any_screen_pick,
                 {.name = kName, .on = on, .grid = multiprocessors(), .threads = kPickThreads, .smem_bytes = 256},
                 args);
}

}  // namespace nibble::backend::cuda
