// Copies between sim and the CPU, between devices, and values that the host reads.
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include "simulated/fallback.h"
#include "simulated/guard.h"
#include "simulated/storage.h"
#include "simulated/thread_state.h"

namespace staticrt::simulated {
namespace {

bool on_sim(const at::Tensor& tensor) {
  return tensor.device().type() == kDeviceType;
}

// A copy of the host's values, because the caller may change them before the copy runs.
void copy_in(const at::Tensor& source, const at::Tensor& to, bool non_blocking) {
  SimulatedDevice& device = device_at(to.device().index());
  const TensorPlace place(to, /*written=*/true);
  at::Tensor staged = source.clone();
  enqueue(device, "aten::copy_",
          [&device, place, staged] { CpuTensors(device.driver()).at(place).copy_(staged); }, {{place, true}});
  if (!non_blocking) wait_for(device, current_stream(device.index()), "a copy from the host");
}

// Host memory is not pinned, so the host waits even if asked not to, as on CUDA.
void copy_out(const at::Tensor& source, const at::Tensor& to) {
  SimulatedDevice& device = device_at(source.device().index());
  device.count_wait("copy to the host");
  const TensorPlace place(source);
  enqueue(device, "copy to the host", [] {}, {{place, false}});  // the host reads, in the stream's order
  wait_for(device, current_stream(device.index()), "a copy to the host");
  ThreadState::now().run([&] { to.copy_(CpuTensors(device.driver()).at(place)); });
}

// Whether work of `device` can access the memory of `owner`. The first copy between the two enables it, as
// torch does on CUDA.
bool have_access(SimulatedDevice& device, SimulatedDevice& owner) {
  if (owner.allocator().has_peer(device.driver())) return true;
  bool reached = false;
  check(owner.driver().reached_by(device.driver(), &reached));
  if (reached) check(owner.allocator().add_peer(device.driver()));
  return reached;
}

// One graph may hold work of both devices, if their streams are in its capture. CUDA's driver would break the
// capture of one that waits for a stream outside.
void check_captures(SimulatedDevice& from_device, SimulatedDevice& to_device) {
  alloc::CaptureState from;
  alloc::CaptureState to;
  const alloc::StreamId from_stream = current_stream(from_device.index());
  const alloc::StreamId to_stream = current_stream(to_device.index());
  check(from_device.driver().capture_state(from_stream, &from));
  check(to_device.driver().capture_state(to_stream, &to));
  const auto text = [](SimulatedDevice& device, alloc::StreamId stream) {
    return c10::str("stream ", alloc::raw(stream), " of ", device.device());
  };
  TORCH_CHECK(from.id == to.id, "cannot copy from ", from_device.device(), " to ", to_device.device(), ": ",
              text(from_device, from_stream), " and ", text(to_device, to_stream),
              " are current, and not in one capture; let the one wait for an event of the captured other one "
              "before the copy, and the captured one for it afterwards (the default stream cannot)");
}

// A copy through host memory, because each device accesses only its own memory.
void copy_through_host(const at::Tensor& source, const at::Tensor& to) {
  SimulatedDevice& from_device = device_at(source.device().index());
  SimulatedDevice& to_device = device_at(to.device().index());
  const TensorPlace from_place(source);
  const TensorPlace to_place(to, /*written=*/true);
  const auto staged = std::make_shared<at::Tensor>();
  enqueue(from_device, "a copy to the host for another device",
          [&from_device, from_place, staged] {
            *staged = CpuTensors(from_device.driver()).at(from_place).clone();
          },
          {{from_place, false}});
  order_after(to_device.index(), current_stream(to_device.index()), from_device.index(),
              current_stream(from_device.index()));
  enqueue(to_device, "aten::copy_",
          [&to_device, to_place, staged] {
            if (staged->defined()) CpuTensors(to_device.driver()).at(to_place).copy_(*staged);
          },
          {{to_place, true}});
}

// On the source's current stream, after the work queued on the target's, which then waits for the copy.
void copy_across(const at::Tensor& source, const at::Tensor& to) {
  SimulatedDevice& from_device = device_at(source.device().index());
  SimulatedDevice& to_device = device_at(to.device().index());
  const alloc::StreamId from_stream = current_stream(from_device.index());
  const alloc::StreamId to_stream = current_stream(to_device.index());
  const TensorPlace from_place(source);
  const TensorPlace to_place(to, /*written=*/true);
  const bool across = from_device.index() != to_device.index();
  if (across) check_captures(from_device, to_device);
  if (across && !have_access(from_device, to_device)) return copy_through_host(source, to);
  if (across) order_after(from_device.index(), from_stream, to_device.index(), to_stream);
  enqueue(from_device, "aten::copy_",
          [&from_device, &to_device, from_place, to_place, across] {
            CpuTensors sources(from_device.driver());
            CpuTensors targets(to_device.driver());
            (across ? targets : sources).at(to_place).copy_(sources.at(from_place));
          },
          {{from_place, false}, {to_place, true}});
  if (!across) return;
  try {
    order_after(to_device.index(), to_stream, from_device.index(), from_stream);
  } catch (...) {
    // The target's stream does not wait for the copy, and would give the memory to others while it runs.
    wait_for(from_device, from_stream, "a copy that no other stream waits for");
    throw;
  }
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const at::Tensor source = self.sizes() == to.sizes() ? self : self.expand_as(to);
  if (to.numel() == 0) return to;
  if (!on_sim(source))
    copy_in(source, to, non_blocking);
  else if (!on_sim(to))
    copy_out(source, to);
  else
    copy_across(source, to);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (self.sizes() != to.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  SimulatedDevice& device = device_at(self.device().index());
  device.count_wait("aten::_local_scalar_dense");
  enqueue(device, "aten::_local_scalar_dense", [] {}, {{TensorPlace(self), false}});
  wait_for(device, current_stream(device.index()), "aten::_local_scalar_dense");
  at::Scalar value;
  ThreadState::now().run(
      [&] { value = at::_local_scalar_dense(CpuTensors(device.driver()).at(TensorPlace(self))); });
  return value;
}

}  // namespace

void register_copies(torch::Library& library) {
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
}

}  // namespace staticrt::simulated
