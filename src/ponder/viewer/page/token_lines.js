// Tokens broken into lines of equal height, so that only the lines in sight are in the document: a rollout of 32,000
// tokens costs what a screen of it costs. Characters are counted in cells of a monospaced font; wide ones take two.
(() => {
  "use strict";

  // Letters of East Asian scripts and most emoji.
  const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\ud83c-\ud83e][\udc00-\udfff]/;
  const TAB_CELLS = 4;

  function cells(letter) {
    if (letter === "\t") return TAB_CELLS;
    return letter < "\u0300" ? 1 : WIDE.test(letter) ? 2 : 1;
  }

  // The pieces of all tokens in lines: {token, text, line} as columns. A token with a line break ends its line there; a
  // token that is longer than the room left goes to the next line, and is cut where it is longer than a whole line.
  function breakLines(texts, columns) {
    const token = [], text = [], starts = [0];
    let used = 0;
    const newLine = () => {
      starts.push(token.length);
      used = 0;
    };
    const put = (i, piece, width) => {
      token.push(i);
      text.push(piece);
      used += width;
    };
    const putLong = (i, piece) => {
      let part = "", width = 0;
      for (const letter of piece) {
        const more = cells(letter);
        if (used + width + more > columns && used + width > 0) {
          if (part) put(i, part, width);
          newLine();
          [part, width] = ["", 0];
        }
        part += letter;
        width += more;
      }
      if (part) put(i, part, width);
    };
    for (let i = 0; i < texts.length; i++) {
      const pieces = texts[i].split("\n");
      for (let k = 0; k < pieces.length; k++) {
        const isLast = k === pieces.length - 1;
        const piece = isLast ? pieces[k] : `${pieces[k]}⏎`;
        if (piece || pieces.length === 1) {
          const width = widthOf(piece);
          if (used > 0 && used + width > columns && width <= columns) newLine();
          if (width <= columns) put(i, piece, width);
          else putLong(i, piece);
        }
        if (!isLast) newLine();
      }
    }
    if (starts[starts.length - 1] < token.length || starts.length === 1) starts.push(token.length);
    return { token, text, starts, count: starts.length - 1 };
  }

  function widthOf(piece) {
    let width = 0;
    if (/^[\u0020-\u02ff]*$/.test(piece)) return piece.length;
    for (const letter of piece) width += cells(letter);
    return width;
  }

  // The line of a token: where its first piece is.
  function lineOf(lines, token) {
    let low = 0, high = lines.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (firstToken(lines, middle) <= token) low = middle;
      else high = middle - 1;
    }
    while (low > 0 && lines.token[lines.starts[low]] === token && firstToken(lines, low) === token && hasToken(lines, low - 1, token)) low--;
    return low;
  }

  const firstToken = (lines, line) => lines.token[lines.starts[line]] ?? Infinity;
  const hasToken = (lines, line, token) => lines.token[lines.starts[line + 1] - 1] === token;

  viewer.tokenLines = { breakLines, lineOf };
})();
