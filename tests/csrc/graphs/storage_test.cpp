#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "common/error.h"
#include "graphs/pool.h"
#include "graphs/routing.h"
#include "graphs/storage_ref.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::graphs;

TEST(a_reference_sees_owners_and_outlives_them) {
  at::Tensor x = at::arange(6, at::kFloat);
  const StorageRef ref(x);
  EXPECT_EQ(ref.use_count(), 1);
  at::Tensor view = x.slice(0, 2);
  EXPECT_EQ(ref.use_count(), 2);
  void* ptr = x.data_ptr();
  x.reset();
  EXPECT(ref.is_alive());
  view.reset();
  EXPECT_EQ(ref.use_count(), 0);
  EXPECT(ref.recorded_ptr() == ptr);
  EXPECT(ref.get() == nullptr);
  EXPECT_THROW(ref.lock_or_throw("view"), InternalError, "is dead");
}

TEST(tensor_at_owns_nothing) {
  const at::Tensor x = at::arange(6, at::kFloat);
  TensorSpec spec = TensorSpec::of(x.slice(0, 1, 6, 2));
  at::Tensor y = tensor_at(spec);
  EXPECT_EQ(y.numel(), 3);
  EXPECT_EQ(y[2].item<float>(), 5.0f);
  EXPECT(address_of(y) == static_cast<char*>(x.data_ptr()) + 4);
  y.fill_(7);
  y.reset();
  EXPECT_EQ(x[1].item<float>(), 7.0f);
  EXPECT_EQ(x[0].item<float>(), 0.0f);
}

TEST(poison_raises_its_text_and_frees) {
  const auto pool = CpuPool::make();
  at::Tensor x;
  {
    const RouteScope route(pool);
    x = at::zeros({100});
  }
  EXPECT_EQ(pool->live().size(), 1u);
  poison(*x.storage().unsafeGetStorageImpl(), "written over at f.py:3");
  EXPECT_EQ(pool->live().size(), 0u);
  EXPECT_THROW(x.add(1), c10::Error, "written over at f.py:3");
  EXPECT_THROW(x.slice(0, 1).sum(), c10::Error, "written over at f.py:3");
  EXPECT(address_of(x) == nullptr);
}

TEST(rehome_moves_bytes_and_views_follow) {
  const auto pool = CpuPool::make();
  at::Tensor x;
  {
    const RouteScope route(pool);
    x = at::arange(1000, at::kFloat);
  }
  const at::Tensor view = x.slice(0, 500);
  const void* before = x.data_ptr();
  EXPECT_EQ(rehome(*x.storage().unsafeGetStorageImpl()), 4000u);
  EXPECT(x.data_ptr() != before);
  EXPECT_EQ(view[0].item<float>(), 500.0f);
  EXPECT_EQ(pool->live().size(), 0u);
  release(*x.storage().unsafeGetStorageImpl());
  EXPECT(address_of(x) == nullptr);
}

TEST(own_address_frees_by_the_devices_allocator) {
  c10::DataPtr bytes = unrouted_allocator()->allocate(64);
  TensorSpec spec = TensorSpec::of(at::zeros({16}));
  spec.storage_ptr = bytes.release_context();
  at::Tensor x = tensor_at(spec);
  x.fill_(1);
  own_address(*x.storage().unsafeGetStorageImpl());
  EXPECT_THROW(own_address(*x.storage().unsafeGetStorageImpl()), InputError, "has an owner");
  x.reset();  // a leak or a double free is the sanitizer's to see
}
