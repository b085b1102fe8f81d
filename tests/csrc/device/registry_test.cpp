#include <ATen/ops/empty.h>

#include "common/error.h"
#include "device/device_memory.h"
#include "device/toy_device.h"
#include "runtime/record/signature.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

TEST(the_host_and_registered_devices_have_memories) {
  use_toy_devices();
  EXPECT_EQ(find_memory(at::kCPU), &host_memory());
  EXPECT(host_memory().is_host());
  for (const int index : {0, 1}) {
    EXPECT_EQ(find_memory(toy(index))->device(), toy(index));
    EXPECT(!find_memory(toy(index))->is_host());
  }
  EXPECT(find_memory(toy(2)) == nullptr);
  EXPECT(find_memory(at::Device(toy(0).type())) == nullptr);  // which of them?
  EXPECT(find_memory(at::kMeta) == nullptr);
}

TEST(a_device_is_registered_once_and_the_host_never) {
  use_toy_devices();
  c10::Allocator& any = *c10::GetAllocator(toy(0).type());
  EXPECT_THROW(register_memory(cached_memory(toy(0), any)), InputError, "register");
  EXPECT_THROW(register_memory(cached_memory(at::Device(toy(0).type()), any)), InputError, "register");
}

TEST(the_same_sizes_on_another_device_are_another_signature) {
  use_toy_devices();
  const at::Tensor host = at::empty({2, 3});
  const at::Tensor first = on_toy(host, 0), second = on_toy(host, 1);
  const auto view = [](const at::Tensor& tensor) { return std::vector<InputView>{{&tensor, {}}}; };
  const Signature signature(view(first), 1);
  EXPECT(signature.matches(view(first), 1));
  EXPECT(!signature.matches(view(second), 1));
  EXPECT(!signature.matches(view(host), 1));
  EXPECT(!Signature(view(host), 1).matches(view(first), 1));
}
