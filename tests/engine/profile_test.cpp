#include "engine/profile.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/error.h"
#include "engine/random.h"

namespace kveval {
namespace {

using testing::HasSubstr;

std::string error_of(const std::string& text, ErrorKind kind = ErrorKind::usage) {
  try {
    parse_profile(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, kind) << text;
    EXPECT_FALSE(error.hint.empty()) << text;
    return error.what();
  }
  ADD_FAILURE() << "'" << text << "' was accepted";
  return {};
}

CachePart part(Format format, ScaleAxis scale = ScaleAxis::none) { return {format, scale, {}}; }

bool valid(const CachePart& p) {
  if (p.format == Format::int8) return p.scale != ScaleAxis::none && p.scale != ScaleAxis::checkpoint;
  return p.scale == ScaleAxis::none || p.format == Format::e4m3 || p.format == Format::e5m2;
}

std::vector<CachePart> every_part() {
  std::vector<CachePart> parts;
  for (Format f : {Format::f32, Format::fp16, Format::bf16, Format::e4m3, Format::e5m2, Format::int8}) {
    for (ScaleAxis a : {ScaleAxis::none, ScaleAxis::tensor, ScaleAxis::token_head, ScaleAxis::checkpoint}) {
      if (valid(part(f, a))) parts.push_back(part(f, a));
    }
  }
  return parts;
}

// Every valid pair of parts, with random skipped layers and modes.
std::vector<Profile> many_profiles() {
  Random random{7};
  std::vector<Profile> profiles;
  for (const CachePart& k : every_part()) {
    for (const CachePart& v : every_part()) {
      for (int variant = 0; variant < 4; variant++) {
        Profile profile{k, v, {}, variant % 2 ? CacheMode::transcode : CacheMode::as_you_go};
        std::set<int> layers;
        for (int i = 0; i < variant * 4; i++) layers.insert(int(random.below(12)) + (i % 3 ? 0 : 1000));
        profile.skip_layers.assign(layers.begin(), layers.end());
        profiles.push_back(profile);
      }
    }
  }
  return profiles;
}

TEST(Profile, presets) {
  const struct {
    const char* name;
    CachePart part;
  } expected[] = {{"f32", part(Format::f32)},
                  {"fp16", part(Format::fp16)},
                  {"bf16", part(Format::bf16)},
                  {"e4m3", part(Format::e4m3)},
                  {"e5m2", part(Format::e5m2)},
                  {"int8", part(Format::int8, ScaleAxis::token_head)},
                  {"int8-tensor", part(Format::int8, ScaleAxis::tensor)},
                  {"fp8", part(Format::e4m3)}};
  for (const auto& [name, both] : expected) {
    const Profile profile = parse_profile(name);
    EXPECT_EQ(profile, (Profile{both, both, {}, CacheMode::as_you_go})) << name;
    EXPECT_EQ(canonical(profile), std::string{name} == "fp8" ? "e4m3" : name);
  }
}

TEST(Profile, items) {
  const CachePart e4m3 = part(Format::e4m3), fp16 = part(Format::fp16);
  EXPECT_EQ(parse_profile("k=e4m3,v=fp16"), (Profile{e4m3, fp16, {}, {}}));
  EXPECT_EQ(parse_profile("e4m3,v=fp16"), (Profile{e4m3, fp16, {}, {}}));
  EXPECT_EQ(parse_profile("v=fp16,k=e4m3"), (Profile{e4m3, fp16, {}, {}}));
  EXPECT_EQ(parse_profile(" e4m3 , skip-layers=0-1,27 , mode=transcode "),
            (Profile{e4m3, e4m3, {0, 1, 27}, CacheMode::transcode}));
  EXPECT_EQ(parse_profile("e4m3,skip-layers=27,0,3-5,4").skip_layers, (std::vector{0, 3, 4, 5, 27}));
  EXPECT_EQ(parse_profile("int8,scale=tensor"), parse_profile("int8-tensor"));
  EXPECT_EQ(parse_profile("k=int8,v=fp16,scale=tensor"),
            (Profile{part(Format::int8, ScaleAxis::tensor), fp16, {}, {}}));
  EXPECT_EQ(parse_profile("int8,k=e4m3"), (Profile{e4m3, part(Format::int8, ScaleAxis::token_head), {}, {}}));
  EXPECT_EQ(parse_profile("int8-tensor,k=fp16"),
            (Profile{fp16, part(Format::int8, ScaleAxis::tensor), {}, {}}));
  EXPECT_EQ(
      parse_profile("k=e4m3,v=int8,k-scale=tensor"),
      (Profile{part(Format::e4m3, ScaleAxis::tensor), part(Format::int8, ScaleAxis::token_head), {}, {}}));
  EXPECT_EQ(parse_profile("fp16,scale=none"), parse_profile("fp16"));
}

TEST(Profile, lists) {
  const std::vector<Profile> profiles = parse_profile_list("fp16,int8,k=e4m3,v=fp16,e4m3,skip-layers=0-1,27");
  ASSERT_EQ(profiles.size(), 4u);
  EXPECT_EQ(profiles[0], parse_profile("fp16"));
  EXPECT_EQ(profiles[1], parse_profile("int8"));
  EXPECT_EQ(profiles[2], parse_profile("k=e4m3,v=fp16"));
  EXPECT_EQ(profiles[3], parse_profile("e4m3,skip-layers=0,1,27"));
}

TEST(Profile, canonical_names_are_pinned) {
  for (const char* text :
       {"k=e4m3,v=fp16", "int8-tensor,skip-layers=0-1,27", "e4m3,scale=tensor", "e5m2,scale=token-head",
        "e4m3,mode=transcode", "k=int8,v=fp16,scale=tensor", "k=e4m3,v=int8,v-scale=tensor",
        "e4m3,scale=checkpoint", "k=e4m3,v=fp16,scale=checkpoint", "e5m2,k-scale=checkpoint",
        "k=e5m2,v=int8,k-scale=checkpoint", "int8,v-scale=tensor", "int8,k-scale=tensor",
        "e4m3,k-scale=tensor,v-scale=token-head", "k=bf16,v=e5m2,skip-layers=3,mode=transcode"}) {
    EXPECT_EQ(canonical(parse_profile(text)), text);
  }
  EXPECT_EQ(canonical(parse_profile("e4m3,v=fp16,mode=as-you-go")), "k=e4m3,v=fp16");
}

TEST(Profile, canonical_round_trips_and_is_unique) {
  std::set<std::string> names;
  std::string list;
  const std::vector<Profile> profiles = many_profiles();
  std::vector<Profile> distinct;
  for (const Profile& profile : profiles) {
    const std::string name = canonical(profile);
    EXPECT_EQ(parse_profile(name), profile) << name;
    if (!names.insert(name).second) continue;
    list += (list.empty() ? "" : ",") + name;
    distinct.push_back(profile);
  }
  EXPECT_EQ(parse_profile_list(list), distinct);
  for (size_t i = 0; i < distinct.size(); i++) {
    for (size_t j = i + 1; j < distinct.size(); j++) EXPECT_NE(distinct[i], distinct[j]);
  }
}

TEST(Profile, json_round_trips_and_the_hash_sees_every_field) {
  std::set<std::string> hashes;
  size_t count = 0;
  Random random{11};
  std::set<std::string> seen;
  for (Profile profile : many_profiles()) {
    if (!seen.insert(canonical(profile)).second) continue;
    for (int resolved = 0; resolved < 2; resolved++) {
      if (resolved && !profile.needs_resolve()) continue;
      for (CachePart* p : {&profile.k, &profile.v}) {
        if (!resolved || (p->scale != ScaleAxis::tensor && p->scale != ScaleAxis::checkpoint)) continue;
        for (int layer = 0; layer < 3; layer++) p->static_scales.push_back(float(random.uniform()) + 1e-7f);
      }
      const std::string text = to_json(profile);
      const bool has_static = text.find("\"tensor\"") + 1 != 0 || text.find("\"checkpoint\"") + 1 != 0;
      EXPECT_EQ(profile.needs_resolve(), !resolved && has_static) << text;
      EXPECT_EQ(profile_from_json(to_json(profile)), profile) << to_json(profile);
      EXPECT_EQ(profile_hash(profile_from_json(to_json(profile))), profile_hash(profile));
      hashes.insert(profile_hash(profile));
      count++;
    }
  }
  EXPECT_EQ(hashes.size(), count);

  // One unit in the last place of one static scale is another profile.
  Profile a = parse_profile("int8-tensor");
  a.k.static_scales = a.v.static_scales = {0.1f, 0.2f};
  Profile b = a;
  b.v.static_scales[1] = std::nextafter(0.2f, 1.0f);
  EXPECT_NE(profile_hash(a), profile_hash(b));
  EXPECT_EQ(canonical(a), canonical(b));
  EXPECT_EQ(profile_from_json(to_json(b)), b);
}

TEST(Profile, json_is_pinned) {
  EXPECT_EQ(
      to_json(parse_profile("e4m3,v=int8,skip-layers=2-3,mode=transcode")),
      R"({"k":{"format":"e4m3","scale":"none","static_scales":[]},"mode":"transcode","skip_layers":[2,3],)"
      R"("v":{"format":"int8","scale":"token-head","static_scales":[]}})");
}

TEST(Profile, an_error_names_the_word_and_what_is_known) {
  const std::string presets = "f32, fp16, bf16, e4m3, e5m2, int8, int8-tensor, fp8";
  EXPECT_EQ(error_of("e4m4"), "unknown profile 'e4m4'; known: " + presets);
  EXPECT_EQ(error_of("E4M3"), "unknown profile 'E4M3'; known: " + presets);
  EXPECT_EQ(error_of(""), "empty profile; known: " + presets);
  EXPECT_EQ(error_of("k=q8,v=fp16"),
            "unknown cache format 'q8' in 'k=q8'; known: f32, fp16, bf16, e4m3, e5m2, int8");
  EXPECT_EQ(error_of("int8,scale=row"),
            "unknown scale axis 'row' in 'scale=row'; known: none, tensor, token-head, checkpoint");
  EXPECT_EQ(error_of("int8,mode=fast"), "unknown mode 'fast' in 'mode=fast'; known: as-you-go, transcode");
  EXPECT_EQ(error_of("int8,skip=1"),
            "unknown item 'skip=' in profile 'int8,skip=1'; known: k=, v=, scale=, k-scale=, v-scale=, "
            "skip-layers=, "
            "mode=");
  EXPECT_THAT(error_of("e4m3,int8"), HasSubstr("more than one profile"));
  EXPECT_THAT(error_of("k=e4m3"), HasSubstr("add v="));
  EXPECT_THAT(error_of("v=e4m3"), HasSubstr("begin with a preset or k="));
  EXPECT_THAT(error_of("mode=transcode"), HasSubstr("begin with a preset or k="));
  EXPECT_THAT(error_of("e4m3,,skip-layers=1"), HasSubstr("empty item"));
  EXPECT_THAT(error_of("e4m3,27"), HasSubstr("'27' in profile 'e4m3,27' follows no skip-layers="));
  EXPECT_THAT(error_of("e4m3,skip-layers=1,mode=transcode,2"), HasSubstr("follows no skip-layers="));
  EXPECT_THAT(error_of("fp16,k=e4m3,k=int8"), HasSubstr("'k=int8' sets twice"));
  EXPECT_THAT(error_of("e4m3,skip-layers=1,skip-layers=2"), HasSubstr("stands twice"));
  for (const char* range :
       {"", "-1", "x", "3-1", "1-", "1-2-3", "0-1024", "99999999999", "0-99999999999", "1.5"}) {
    EXPECT_THAT(error_of(std::string{"e4m3,skip-layers="} + range), HasSubstr("skip-layers=")) << range;
  }
}

TEST(Profile, scales_belong_to_8_bit_formats) {
  for (const char* text : {"fp16,scale=tensor", "f32,scale=token-head", "k=fp16,v=e4m3,k-scale=tensor",
                           "bf16,v-scale=token-head"}) {
    EXPECT_THAT(error_of(text), HasSubstr("is stored without a scale")) << text;
  }
  for (const char* text : {"int8,scale=none", "k=e4m3,v=int8,scale=none", "int8,k-scale=none"}) {
    EXPECT_THAT(error_of(text), HasSubstr("int8 needs a scale")) << text;
  }
  for (const char* text :
       {"int8,scale=checkpoint", "k=e4m3,v=int8,scale=checkpoint", "int8,v-scale=checkpoint"}) {
    EXPECT_THAT(error_of(text), HasSubstr("the scales of a checkpoint are for e4m3 and e5m2")) << text;
  }
  EXPECT_NO_THROW(parse_profile("e4m3,scale=tensor"));
  EXPECT_NO_THROW(parse_profile("e5m2,scale=token-head"));
}

TEST(Profile, lists_report_the_broken_profile) {
  for (const char* text : {"", "fp16,,int8", "fp16,k=e4m3,int8", "v=fp16,int8", "3,fp16", "fp16,", ",fp16"}) {
    EXPECT_THROW(parse_profile_list(text), Error) << text;
  }
}

TEST(Profile, stored_json_that_is_not_ours_is_refused) {
  const std::string good = to_json(parse_profile("e4m3,scale=tensor"));
  const auto refused = [](const std::string& text) {
    try {
      profile_from_json(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::bad_file) << text;
      return true;
    }
    return false;
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_FALSE(refused(good));
  EXPECT_FALSE(refused(with("[]", "[0.5,2]")));
  for (const std::string& text :
       {std::string{},
        std::string{"{"},
        std::string{"[]"},
        std::string{"3"},
        good.substr(0, good.size() - 1),
        with("e4m3", "e4m4"),
        with("tensor", "block"),
        with("\"as-you-go\"", "1"),
        with("[]", "[0]"),
        with("[]", "[-1.5]"),
        with("[]", "[1e39]"),
        with("[]", "[null]"),
        with("[]", "{}"),
        with("\"k\"", "\"q\""),
        with("\"tensor\",\"static_scales\":[]", "\"none\",\"static_scales\":[1]"),
        with("e4m3", "fp16"),
        with("\"format\":\"e4m3\",\"scale\":\"tensor\"", "\"format\":\"int8\",\"scale\":\"checkpoint\""),
        with("\"skip_layers\":[]", "\"skip_layers\":[2,1]"),
        with("\"skip_layers\":[]", "\"skip_layers\":[1,1]"),
        with("\"skip_layers\":[]", "\"skip_layers\":[-1]"),
        with("\"skip_layers\":[]", "\"skip_layers\":[1.5]"),
        with("\"skip_layers\":[]", "\"skip_layers\":[18446744073709551615]"),
        with("\"skip_layers\":[]", "\"skip_layers\":\"0\""),
        with("\"skip_layers\":[]", "\"skip_layers\":[],\"rotation\":true")}) {
    EXPECT_TRUE(refused(text)) << text;
  }
}

}  // namespace
}  // namespace kveval
