#include "allocator/pools/checkpoint.h"

#include <sstream>

#include "common/error.h"

namespace staticrt::alloc {

std::vector<Addr> PoolImage::live() const {
  std::vector<Addr> found;
  for (const ImageSegment& segment : segments) {
    Addr at = segment.base;
    for (const ImageRun& run : segment.runs) {
      if (run.state == BlockState::live) found.push_back(at);
      at += run.size;
    }
  }
  return found;
}

namespace {

std::string text_of(const ImageRun& run) {
  std::string text = detail::concat(run.size, " B ", run.state, " on stream ", run.stream);
  if (run.state == BlockState::live) text += detail::concat(", requested ", run.requested);
  for (const StreamId use : run.uses) text += detail::concat(", used on stream ", use);
  for (const PeerUse& use : run.peer_uses)
    text += detail::concat(", used on stream ", use.stream, " of device ", use.device);
  return text;
}

void diff_segment(const ImageSegment& a, const ImageSegment& b, std::vector<std::string>* lines) {
  const std::string name = detail::concat("segment ", a.id, " at ", a.base);
  if (a.generation != b.generation || a.kind != b.kind || a.size_class != b.size_class || a.size != b.size ||
      a.stream != b.stream)
    lines->push_back(name + ": another segment of the same address");
  Bytes offset_a = 0;
  Bytes offset_b = 0;
  size_t i = 0;
  size_t j = 0;
  while (i < a.runs.size() || j < b.runs.size()) {
    const bool both = i < a.runs.size() && j < b.runs.size() && offset_a == offset_b;
    if (both && a.runs[i] == b.runs[j]) {
      offset_a += a.runs[i++].size;
      offset_b += b.runs[j++].size;
    } else if (j >= b.runs.size() || (i < a.runs.size() && offset_a <= offset_b)) {
      lines->push_back(detail::concat(name, " + ", offset_a, ": - ", text_of(a.runs[i])));
      offset_a += a.runs[i++].size;
    } else {
      lines->push_back(detail::concat(name, " + ", offset_b, ": + ", text_of(b.runs[j])));
      offset_b += b.runs[j++].size;
    }
  }
}

}  // namespace

std::vector<std::string> PoolImage::diff(const PoolImage& other) const {
  std::vector<std::string> lines;
  if (pool != other.pool) lines.push_back(detail::concat("pool ", pool, " against ", other.pool));
  if (refs != other.refs) lines.push_back(detail::concat("references ", refs, " against ", other.refs));
  auto a = segments.begin();
  auto b = other.segments.begin();
  while (a != segments.end() || b != other.segments.end()) {
    if (b == other.segments.end() || (a != segments.end() && a->base < b->base)) {
      lines.push_back(detail::concat("segment ", a->id, " at ", a->base, ": - ", a->size, " B"));
      ++a;
    } else if (a == segments.end() || b->base < a->base) {
      lines.push_back(detail::concat("segment ", b->id, " at ", b->base, ": + ", b->size, " B"));
      ++b;
    } else {
      diff_segment(*a++, *b++, &lines);
    }
  }
  return lines;
}

// One line for the pool, one per segment, one per run; all numbers decimal.
std::string PoolImage::serialize() const {
  std::ostringstream out;
  out << "pool_image 2 " << pool.first << " " << pool.second << " " << refs << " " << segments.size() << "\n";
  for (const ImageSegment& segment : segments) {
    out << segment.id << " " << segment.generation << " " << static_cast<int>(segment.kind) << " "
        << static_cast<int>(segment.size_class) << " " << segment.base << " " << segment.size << " "
        << raw(segment.stream) << " " << segment.runs.size() << "\n";
    for (const ImageRun& run : segment.runs) {
      out << run.size << " " << run.requested << " " << static_cast<int>(run.state) << " " << raw(run.stream)
          << " " << run.uses.size();
      for (const StreamId use : run.uses) out << " " << raw(use);
      out << " " << run.peer_uses.size();
      for (const PeerUse& use : run.peer_uses) out << " " << use.device << " " << raw(use.stream);
      out << "\n";
    }
  }
  return out.str();
}

Status PoolImage::parse(const std::string& text, PoolImage* image) {
  std::istringstream in(text);
  const Status broken = Status::InvalidArgument("pool image: not a text that serialize() wrote");
  auto number = [&](uint64_t most) {
    uint64_t value = 0;
    if (!(in >> value) || value > most) in.setstate(std::ios::failbit);
    return value;
  };
  constexpr uint64_t kAny = ~uint64_t{0};
  std::string word;
  PoolImage read;
  if (!(in >> word) || word != "pool_image") return broken;
  const uint64_t version = number(2);  // 1 has no uses of other devices
  if (version == 0) return broken;
  read.pool.first = number(kAny);
  read.pool.second = number(kAny);
  read.refs = static_cast<int64_t>(number(kAny / 2));
  for (uint64_t left = number(kAny); in && left > 0; --left) {
    ImageSegment segment;
    segment.id = static_cast<SegmentId>(number(UINT32_MAX));
    segment.generation = static_cast<uint32_t>(number(UINT32_MAX));
    segment.kind = static_cast<SegmentKind>(number(3));
    segment.size_class = static_cast<SizeClass>(number(1));
    segment.base = number(kAny);
    segment.size = number(kAny);
    segment.stream = StreamId{number(kAny)};
    Bytes sum = 0;
    for (uint64_t runs = number(kAny); in && runs > 0; --runs) {
      ImageRun run;
      run.size = number(kAny);
      run.requested = number(kAny);
      run.state = static_cast<BlockState>(number(kBlockStates - 1));
      run.stream = StreamId{number(kAny)};
      for (uint64_t uses = number(kAny); in && uses > 0; --uses) run.uses.push_back(StreamId{number(kAny)});
      for (uint64_t uses = version < 2 ? 0 : number(kAny); in && uses > 0; --uses) {
        const int device = static_cast<int>(number(INT32_MAX));
        run.peer_uses.push_back({device, StreamId{number(kAny)}});
      }
      sum += run.size;
      if (run.state > BlockState::live || run.size == 0) return broken;
      segment.runs.push_back(std::move(run));
    }
    if (!in || sum != segment.size) return broken;
    read.segments.push_back(std::move(segment));
  }
  if (!in) return broken;
  *image = std::move(read);
  return Status::Ok();
}

}  // namespace staticrt::alloc
