// Loads an archive that staticrt.save wrote and runs it, from several threads, on an input of the given
// sizes.
//
//   run_model ARCHIVE SIZE...
//
// The input is 0, 1/n, 2/n, ... in that shape. Prints each output's sizes and values.
#include <ATen/ops/arange.h>
#include <staticrt/staticrt.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

namespace {

void show(const at::Tensor& tensor) {
  std::printf("[");
  for (int64_t d = 0; d < tensor.dim(); ++d)
    std::printf("%s%lld", d ? ", " : "", static_cast<long long>(tensor.size(d)));
  std::printf("]");
  const at::Tensor values = tensor.to(at::kDouble).contiguous();
  for (int64_t i = 0; i < values.numel(); ++i) std::printf(" %.9g", values.const_data_ptr<double>()[i]);
  std::printf("\n");
}

int run(int argc, char** argv) {
  const staticrt::Module model = staticrt::load(argv[1]);
  for (const staticrt::InputSpec& input : model.inputs())
    std::printf("input %s: %s, %lld dimensions\n", input.name.c_str(), c10::toString(input.dtype),
                static_cast<long long>(input.dim));

  std::vector<int64_t> sizes;
  int64_t count = 1;
  for (int i = 2; i < argc; ++i) {
    sizes.push_back(std::atoll(argv[i]));
    count *= sizes.back();
  }
  const at::Tensor input =
      at::arange(count, at::kFloat).div_(static_cast<double>(count > 0 ? count : 1)).reshape(sizes);

  // One module, many threads: each call has its own outputs.
  const std::vector<at::Tensor> outputs = model.run({input});
  std::vector<std::thread> threads;
  std::vector<int> same(4, 0);
  for (int& result : same) {
    threads.emplace_back([&model, &input, &outputs, &result] {
      try {
        // The first call took the general path; other kernels may round otherwise.
        result = model.run({input}).at(0).allclose(outputs.at(0), 1e-4, 1e-5);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& output : outputs) show(output);
  for (const int result : same) {
    if (!result) return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: run_model ARCHIVE SIZE...\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const staticrt::ArchiveError& error) {
    std::fprintf(stderr, "cannot load: %s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cannot run: %s\n", error.what());
    return 4;
  }
}
