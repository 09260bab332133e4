// Writes the entropy of one image, with the model that `segunc export --to onnx` made: main model.onnx image.png entropy.png
// The PNG holds the codes of segunc's own maps: round(65535 sqrt(v)), 16 bits; v = (code / 65535)^2 is the entropy as a share of ln C.
#include <onnxruntime_cxx_api.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

struct Image {
    int64_t height, width;
    std::vector<uint8_t> rgb;  // [height, width, 3]
};

[[noreturn]] void keep_message(png_structp png, png_const_charp message) {
    *static_cast<std::string*>(png_get_error_ptr(png)) = message;
    png_longjmp(png, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

// The orientation in EXIF data, 1 (upright) where it holds none.
uint64_t orientation(const png_byte* exif, uint64_t size) {
    const auto number = [&](uint64_t place, int bytes) {
        uint64_t value = 0;
        for (int byte = 0; byte < bytes && place + bytes <= size; ++byte) {
            const int shift = exif[0] == 'I' ? byte : bytes - 1 - byte;  // Intel's order, else Motorola's
            value |= static_cast<uint64_t>(exif[place + byte]) << 8 * shift;
        }
        return value;
    };
    const uint64_t table = number(4, 4);
    const uint64_t count = number(table, 2);
    for (uint64_t entry = 0; entry < count; ++entry) {
        const uint64_t place = table + 2 + 12 * entry;
        if (number(place, 2) == 0x0112) return number(place + 8, 2);
    }
    return 1;
}

// Reads the pixels, and returns the orientation; 0 where the file is damaged. libpng jumps back to setjmp, so no object with a
// destructor is made here.
uint64_t read_rows(png_structp png, png_infop info, std::FILE* file, Image& image, std::vector<png_bytep>& rows) {
    if (setjmp(png_jmpbuf(png))) return 0;
    png_init_io(png, file);
    png_read_info(png, info);
    // As segunc reads frames: of 16 bits the high byte, without transparency and without a correction by gamma.
    png_set_strip_16(png);
    if (png_get_color_type(png, info) == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    image.height = png_get_image_height(png, info);
    image.width = png_get_image_width(png, info);
    image.rgb.resize(3 * image.height * image.width);
    for (int64_t row = 0; row < image.height; ++row) rows.push_back(&image.rgb[3 * image.width * row]);
    png_read_image(png, rows.data());
    png_read_end(png, info);
    png_bytep exif = nullptr;
    png_uint_32 size = 0;
    return png_get_eXIf_1(png, info, &size, &exif) ? orientation(exif, size) : 1;
}

Image read_png(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) throw std::runtime_error(path + " cannot be read");
    std::string message = "not enough memory";
    Image image{};
    std::vector<png_bytep> rows;
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &message, keep_message, ignore_warning);
    png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
    const uint64_t turned = info == nullptr ? 0 : read_rows(png, info, file, image, rows);
    png_destroy_read_struct(&png, &info, nullptr);
    std::fclose(file);
    if (turned == 0) throw std::runtime_error(path + ": " + message);
    if (turned > 1 && turned <= 8) {
        throw std::runtime_error(path + " has the EXIF orientation " + std::to_string(turned) + ", and this program turns no image: store it upright");
    }
    return image;
}

// Writes 16-bit codes [height, width]; libpng's simplified interface would mark them as linear light.
void write_codes(const std::string& path, std::vector<uint16_t>& codes, int64_t height, int64_t width) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) throw std::runtime_error(path + " cannot be written");
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
    png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
    if (info == nullptr || setjmp(png_jmpbuf(png))) {
        png_destroy_write_struct(&png, &info);
        std::fclose(file);
        throw std::runtime_error(path + " cannot be written");
    }
    png_init_io(png, file);
    png_set_IHDR(png, info, width, height, 16, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    const uint16_t one = 1;
    if (*reinterpret_cast<const uint8_t*>(&one) == 1) png_set_swap(png);  // PNG is big-endian
    for (int64_t row = 0; row < height; ++row) png_write_row(png, reinterpret_cast<png_const_bytep>(&codes[row * width]));
    png_write_end(png, nullptr);
    png_destroy_write_struct(&png, &info);
    if (std::fclose(file) != 0) throw std::runtime_error(path + " cannot be written");
}

int run(const std::string& model, const std::string& source, const std::string& target) {
    Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "segunc");
    Ort::SessionOptions options;
    Ort::Session session(environment, model.c_str(), options);
    const Image image = read_png(source);
    const Ort::TypeInfo type = session.GetInputTypeInfo(0);
    const auto info = type.GetTensorTypeAndShapeInfo();
    std::vector<int64_t> shape = info.GetShape();  // [1, 3, H, W]; -1 is any side
    if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || shape.empty() || shape[0] != 1) {
        throw std::runtime_error(model + " takes uint8 frames or several frames, and this program gives one float32 image");
    }
    if (shape.size() != 4 || (shape[2] > 0 && shape[2] != image.height) || (shape[3] > 0 && shape[3] != image.width)) {
        throw std::runtime_error(source + " has " + std::to_string(image.height) + " x " + std::to_string(image.width) + " pixels, and " + model +
                                 " takes " + std::to_string(shape.at(2)) + " x " + std::to_string(shape.at(3)));
    }
    shape = {1, 3, image.height, image.width};
    const int64_t pixels = image.height * image.width;
    std::vector<float> input(3 * pixels);  // RGB in 0..1, planes; mean and standard deviation are inside of the model
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        for (int channel = 0; channel < 3; ++channel) input[channel * pixels + pixel] = image.rgb[3 * pixel + channel] / 255.0f;
    }
    const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const Ort::Value tensor = Ort::Value::CreateTensor<float>(memory, input.data(), input.size(), shape.data(), shape.size());
    const char* inputs[] = {"image"};
    const char* outputs[] = {"entropy"};  // what is not asked for and leads to nothing else is not computed
    std::vector<Ort::Value> maps = session.Run(Ort::RunOptions{nullptr}, inputs, &tensor, 1, outputs, 1);
    const float* entropy = maps[0].GetTensorData<float>();
    std::vector<uint16_t> codes(pixels);
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        if (!std::isfinite(entropy[pixel])) throw std::runtime_error(model + " gives NaN or infinite values for " + source);
        const float value = std::min(1.0f, std::max(0.0f, entropy[pixel]));
        codes[pixel] = static_cast<uint16_t>(std::nearbyint(std::sqrt(value) * 65535.0f));
    }
    write_codes(target, codes, image.height, image.width);
    return 0;
}

int main(int count, char** words) {
    if (count != 4) {
        std::cerr << "usage: " << words[0] << " model.onnx image.png entropy.png\n";
        return 2;
    }
    try {
        return run(words[1], words[2], words[3]);
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
}
