// A pen with the part of the canvas's drawing functions that figures use; it writes an SVG file instead of pixels.
(() => {
  "use strict";

  const escapeXml = (text) =>
    String(text)
      .replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd]/g, "\ufffd")
      .replace(/[&<>"']/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;" })[sign]);
  const round = (value) => Math.round(value * 100) / 100;

  class SvgPen {
    constructor(width, height) {
      Object.assign(this, { width, height, fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1 });
      Object.assign(this, { font: "11px sans-serif", textBaseline: "middle", dash: [], path: [], parts: [] });
    }

    beginPath() { this.path = []; }
    closePath() { this.path.push("Z"); }
    moveTo(x, y) { this.path.push(`M${round(x)} ${round(y)}`); }
    lineTo(x, y) { this.path.push(`L${round(x)} ${round(y)}`); }
    bezierCurveTo(a, b, c, d, x, y) { this.path.push(`C${[a, b, c, d, x, y].map(round).join(" ")}`); }
    rect(x, y, width, height) { this.path.push(`M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}Z`); }
    setLineDash(dash) { this.dash = dash; }

    // Whole circles only.
    arc(x, y, radius) {
      const r = round(radius);
      this.path.push(`M${round(x + radius)} ${round(y)}a${r} ${r} 0 1 0 ${-2 * r} 0a${r} ${r} 0 1 0 ${2 * r} 0`);
    }

    fill() { this.add(`<path d="${this.path.join("")}" fill="${escapeXml(this.fillStyle)}"`); }

    stroke() {
      const dash = this.dash.length ? ` stroke-dasharray="${this.dash.map(round).join(" ")}"` : "";
      const pen = `stroke="${escapeXml(this.strokeStyle)}" stroke-width="${round(this.lineWidth)}"${dash}`;
      this.add(`<path d="${this.path.join("")}" fill="none" ${pen}`);
    }

    fillRect(x, y, width, height) {
      const box = `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;
      this.add(`<rect ${box} fill="${escapeXml(this.fillStyle)}"`);
    }

    fillText(text, x, y) {
      const size = parseFloat(this.font) || 11;
      const dy = this.textBaseline === "middle" ? size * 0.35 : 0;
      const place = `x="${round(x)}" y="${round(y + dy)}" font-size="${size}" font-family="system-ui, sans-serif"`;
      this.add(`<text ${place} fill="${escapeXml(this.fillStyle)}"`, `${escapeXml(text)}</text>`);
    }

    add(start, end = null) {
      const alpha = this.globalAlpha < 1 ? ` opacity="${round(this.globalAlpha)}"` : "";
      this.parts.push(end === null ? `${start}${alpha}/>` : `${start}${alpha}>${end}`);
    }

    toString() {
      const box = `width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}"`;
      return `<svg xmlns="http://www.w3.org/2000/svg" ${box}>\n${this.parts.join("\n")}\n</svg>\n`;
    }
  }

  viewer.SvgPen = SvgPen;
})();
